/*
 * Attacks on the daemon and on its neighbours, one attack per mode:
 *
 *     attack_programs MODE [ARGUMENT]
 *
 * The tests compile this file (statically: the image has no compiler and maybe another C library),
 * upload the program, and run the program as any user would. When the daemon fails to stop an
 * attack, the machine must survive: every process ends after LIFE_SECONDS, and after MOST_FORKS
 * forks a bomb only spins. Shared memory counts the forks; the memory survives exec as descriptor
 * COUNTER_FD.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum {
    LIFE_SECONDS = 60,
    SMALL_STACK = 64 * 1024,
    COUNTER_FD = 100,
    MOST_FORKS = 6000,
    SIGNALING_SECONDS = 3,
    MANY_CHILDREN = 200,
};

static char *own_path;
static int *n_forks;

static void share_counter(void)
{
    if (lseek(COUNTER_FD, 0, SEEK_CUR) < 0) {
        int fd = memfd_create("forks", 0);
        if (fd < 0 || ftruncate(fd, sizeof *n_forks) != 0 || dup2(fd, COUNTER_FD) < 0)
            exit(3);
    }
    n_forks = mmap(NULL, sizeof *n_forks, PROT_READ | PROT_WRITE, MAP_SHARED, COUNTER_FD, 0);
    if (n_forks == MAP_FAILED)
        exit(3);
}

static void spin_after_most_forks(void)
{
    while (__atomic_load_n(n_forks, __ATOMIC_RELAXED) > MOST_FORKS)
        getppid();
}

/* A refused fork does not count: a bomb that has reached a limit of processes keeps trying. */
static pid_t counted(pid_t pid)
{
    if (pid > 0)
        __atomic_add_fetch(n_forks, 1, __ATOMIC_RELAXED);
    return pid;
}

static void live_for_a_minute(void)
{
    /* A child does not inherit the alarm (fork(2)), so every process sets an alarm. */
    alarm(LIFE_SECONDS);
}

static void fork_forever(void)
{
    for (;;) {
        spin_after_most_forks();
        if (counted(fork()) == 0)
            live_for_a_minute();
    }
}

static void fork_sessions(void)
{
    for (;;) {
        setsid();
        spin_after_most_forks();
        if (counted(fork()) == 0)
            live_for_a_minute();
    }
}

/* Each process forks once and ends: few processes live at a time, and no process lives long enough
 * for a signal by pid. */
static void fork_and_end(void)
{
    time_t end = time(NULL) + LIFE_SECONDS;
    while (time(NULL) < end) {
        setsid();
        if (fork() > 0)
            _exit(0);
    }
}

static void fork_subreapers(void)
{
    for (;;) {
        prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0);
        setsid();
        spin_after_most_forks();
        if (counted(fork()) == 0)
            live_for_a_minute();
    }
}

static void vfork_itself(void)
{
    for (;;) {
        setsid();
        spin_after_most_forks();
        pid_t pid = vfork();
        if (pid == 0) {
            execl(own_path, own_path, "vfork", NULL);
            _exit(127);
        }
        (void)counted(pid);
    }
}

static void *fork_in_thread(void *unused)
{
    fork_forever();
    return unused;
}

static void fork_threads(void)
{
    for (int i = 0; i < 4; i++) {
        pthread_t thread;
        pthread_create(&thread, NULL, fork_in_thread, NULL);
    }
    fork_sessions();
}

static void *sleep_in_thread(void *unused)
{
    sleep(LIFE_SECONDS);
    return unused;
}

/* Start up to `wanted` sleeping threads, fewer when the kernel refuses a thread, and print how many
 * threads run. */
static void sleeping_threads(int wanted)
{
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, SMALL_STACK);
    int count = 0;
    for (; count < wanted; count++) {
        pthread_t thread;
        if (pthread_create(&thread, &attributes, sleep_in_thread, NULL) != 0)
            break;
    }
    printf("%d threads\n", count);
    fflush(stdout);
    sleep(LIFE_SECONDS);
}

/* Signal the pids that the next programs will get. A child stopped between vfork and exec blocks
 * the child's parent (vfork(2)). */
static void signal_next_pids(int number)
{
    time_t end = time(NULL) + SIGNALING_SECONDS;
    pid_t newest = getpid();
    while (time(NULL) < end) {
        for (pid_t pid = newest + 1; pid < newest + 64; pid++)
            if (kill(pid, number) == 0)
                newest = pid;
    }
    _exit(0);
}

/* No attack: an honest program with a single orphan, which ends after `milliseconds`, and with many
 * children. */
static void have_an_orphan_and_children(int milliseconds)
{
    if (fork() == 0) {
        if (fork() == 0)
            usleep(milliseconds * 1000);
        _exit(0);
    }
    wait(NULL);
    for (int i = 0; i < MANY_CHILDREN; i++)
        if (fork() == 0) {
            usleep(400 * 1000);
            _exit(0);
        }
    while (wait(NULL) > 0)
        ;
    exit(0);
}

int main(int argc, char **argv)
{
    const char *mode = argc > 1 ? argv[1] : "";
    int argument = argc > 2 ? atoi(argv[2]) : 0;
    own_path = argv[0];
    share_counter();
    live_for_a_minute();
    if (strcmp(mode, "fork") == 0)
        fork_forever();
    else if (strcmp(mode, "sessions") == 0)
        fork_sessions();
    else if (strcmp(mode, "chain") == 0)
        fork_and_end();
    else if (strcmp(mode, "subreapers") == 0)
        fork_subreapers();
    else if (strcmp(mode, "vfork") == 0)
        vfork_itself();
    else if (strcmp(mode, "forking threads") == 0)
        fork_threads();
    else if (strcmp(mode, "threads") == 0)
        sleeping_threads(argument);
    else if (strcmp(mode, "signal next") == 0)
        signal_next_pids(argument);
    else if (strcmp(mode, "orphan and children") == 0)
        have_an_orphan_and_children(argument);
    fprintf(stderr, "no such mode: %s\n", mode);
    return 2;
}
