/*
 * The early end of a program that ends at once, and leaves nothing. early_end.py is the front, and
 * says what the caller may conclude.
 *
 * The proof that a program has left nothing. The kernel gives out the pids of a namespace in
 * ascending order, to processes and threads alike, and /proc/loadavg tells the newest pid
 * (proc_loadavg(5)). A dead child that nobody has reaped yet keeps its pid. So when the newest pid
 * is then still the child's, nothing was created after the child, and the child has no descendants.
 * Privileged code may choose pids (clone3(2), set_tid) or move the newest pid (ns_last_pid); both
 * take capabilities that no command has (root_capabilities.py).
 *
 * Only a child with that proof is reaped here. For every other child the warden's loop does what it
 * does for all children.
 */
#define _GNU_SOURCE
#include <poll.h>
#include <signal.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include "_early_end.h"

static double seconds(struct timeval time)
{
    return (double)time.tv_sec + (double)time.tv_usec / 1e6;
}

void execd_note_usage(struct early_end *end, const struct rusage *usage)
{
    end->max_rss_kib = usage->ru_maxrss;
    end->user_seconds = seconds(usage->ru_utime);
    end->system_seconds = seconds(usage->ru_stime);
}

/* waitid(2) also tells of a stop, without WSTOPPED, if the child has made the caller its tracer:
 * CLD_TRAPPED, and in gVisor CLD_KILLED by a signal that no kernel has. */
int execd_has_ended(pid_t pid)
{
    enum { GVISOR_STOP = 127 };
    siginfo_t found = {.si_pid = 0};
    if (waitid(P_PID, (id_t)pid, &found, WEXITED | WNOHANG | WNOWAIT) != 0 || found.si_pid != pid)
        return 0;
    return found.si_code == CLD_EXITED ||
           ((found.si_code == CLD_KILLED || found.si_code == CLD_DUMPED) &&
            found.si_status != GVISOR_STOP);
}

/* A child that waits to be reaped; 0: none. */
pid_t execd_ended_child(void)
{
    siginfo_t found = {.si_pid = 0};
    return waitid(P_ALL, 0, &found, WEXITED | WNOHANG | WNOWAIT) == 0 ? found.si_pid : 0;
}

/* Wait for the end of `pid` until `nanoseconds` are over, or until there is something to read from
 * `requests`. Returns whether the child has ended, has left nothing, and has been reaped.
 * `signals`: of execd_open_child_signals. */
int execd_await_early_end(pid_t pid, int signals, int requests, int loadavg, int64_t nanoseconds,
                          struct early_end *end)
{
    struct pollfd fds[] = {{.fd = signals, .events = POLLIN}, {.fd = requests, .events = POLLIN}};
    struct timespec timeout = {.tv_nsec = (long)nanoseconds};
    struct signalfd_siginfo taken;
    struct rusage usage;
    if (ppoll(fds, 2, &timeout, NULL) <= 0 || !(fds[0].revents & POLLIN))
        return 0;
    if (!execd_has_ended(pid) || execd_newest_pid(loadavg) != pid)
        return 0;
    if (wait4(pid, &end->wait_status, WNOHANG, &usage) != pid)
        return 0;
    execd_note_usage(end, &usage);
    /* The pending SIGCHLD is one signal for all children that have ended meanwhile: signal(7). So
     * first the signal is taken, and then the question is asked. */
    (void)!read(signals, &taken, sizeof taken);
    end->has_more = execd_ended_child() != 0;
    return 1;
}
