/* Shows all that a program can find of the process that started the program. With the first argument
 * "exit" or "die", ends with the code or by the signal of the second argument. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

extern char **environ;

static void show_signals(void)
{
    /* Raw system calls: the C library hides two signals. */
    struct {
        void *handler;
        unsigned long flags;
        void *restorer;
        unsigned long mask;
    } action;
    unsigned long blocked = 0;
    for (int number = 1; number <= 64; number++)
        if (syscall(SYS_rt_sigaction, number, NULL, &action, 8) == 0 && action.handler != NULL)
            printf("signal %d is not default\n", number);
    syscall(SYS_rt_sigprocmask, SIG_BLOCK, NULL, &blocked, 8);
    printf("blocked %lx\n", blocked);
}

int main(int argc, char **argv)
{
    char path[4096];
    mode_t mask = umask(0);
    for (int i = 0; i < argc; i++)
        printf("argument %zu %s\n", strlen(argv[i]), argv[i]);
    for (char **entry = environ; *entry; entry++)
        printf("variable %s\n", *entry);
    printf("directory %s\n", getcwd(path, sizeof path));
    for (int fd = 0; fd < 256; fd++)
        if (fcntl(fd, F_GETFD) >= 0)
            printf("descriptor %d %x\n", fd, fcntl(fd, F_GETFL));
    show_signals();
    for (int which = 0; which < RLIM_NLIMITS; which++) {
        struct rlimit limit;
        getrlimit((__rlimit_resource_t)which, &limit);
        printf("limit %d %lx %lx\n", which, (unsigned long)limit.rlim_cur,
               (unsigned long)limit.rlim_max);
    }
    printf("umask %o nice %d user %d %d\n", mask, nice(0), getuid(), geteuid());
    printf("group is session %d\n", getpgrp() == getsid(0));
    printf("leads group %d\n", getpgrp() == getpid());
    fprintf(stderr, "error\n");
    fflush(stdout);
    if (argc == 3 && strcmp(argv[1], "exit") == 0)
        return atoi(argv[2]);
    if (argc == 3 && strcmp(argv[1], "die") == 0)
        syscall(SYS_kill, getpid(), atoi(argv[2]));
    return 0;
}
