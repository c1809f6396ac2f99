/*
 * A fork whose new process is an orphan at once, at the price of one copy of the memory:
 * double_fork.py is the front, and says when it may be used.
 *
 * vfork(2) makes the intermediate process: it shares the caller's memory and stack, and the caller
 * stands still until the intermediate process ends. The intermediate process forks, by fork(3) of
 * the C library with all fork handlers, and ends. The new process has a copy of the stack as it was
 * at that fork. So the new process may return from the function below, although the intermediate
 * process itself must not.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <sys/wait.h>
#include <unistd.h>

typedef void hook(void);

/* Fork an orphan. Returns 0 in the caller, or -errno; in the new process the pid of the
 * intermediate process. The hooks are those of Python's own fork: PyOS_BeforeFork and so on. */
__attribute__((noinline)) int execd_fork_orphan(hook *before, hook *after_in_child,
                                                hook *after_in_parent)
{
    volatile int error = 0; /* the intermediate process writes, and the caller reads */
    volatile pid_t intermediate_pid = 0;
    int wait_status = 0;
    pid_t pid, waited;
    before();
    pid = vfork();
    if (pid == 0) {
        intermediate_pid = getpid();
        pid = fork();
        if (pid == 0) {
            after_in_child();
            return intermediate_pid;
        }
        if (pid < 0)
            error = errno;
        _exit(0);
    }
    if (pid < 0)
        error = errno;
    after_in_parent();
    if (pid > 0) {
        do
            waited = waitpid(pid, &wait_status, 0);
        while (waited < 0 && errno == EINTR);
        /* A status: the process was killed, perhaps before its fork. No status: user code ignores
         * SIGCHLD, so the kernel has reaped the process, and the daemon notices a failed fork by
         * the missing greeting. */
        if (waited == pid && wait_status != 0 && error == 0)
            error = ECHILD;
    }
    return -error;
}
