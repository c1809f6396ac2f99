/*
 * The brake: a thread of the warden that stops every process of the warden's PID namespace when tasks grow faster than
 * the warden follows, or when the warden does not get the CPU. brake.py loads this file's functions; fork_bombs.py says
 * when the brake is armed, and thaws.
 *
 * Why a thread in C. Natively each session has its own share of the CPU (sched(7), autogroup). Beside a thousand busy
 * sessions the warden waits 50 ms after each 0.1 ms of work, and a bomb of sessions doubles in that time; a turn of the
 * warden's loop takes 1 to 20 ms of work. The thread needs 0.02 ms. In Python the thread would wait for the GIL, which
 * the starved main thread holds.
 *
 * The dead man's switch. The main thread arms the brake at each look, and names the moment by which the next look is due.
 * Processes that only compute starve a warden as well as processes that fork. Where the kernel gives the thread its
 * real-time policy, the thread stops everything at that moment, and the main thread looks, judges and thaws undisturbed.
 *
 * The threads share six words. `stop_at`, `counted_from` and `look_by` have one writer, the main thread; a reader that
 * sees the new value of one and the old value of another stops everything once too often, which costs a thaw.
 * `is_stopping` is the brake's, and is set as long as the brake sends SIGSTOP: who has seen a process that the brake
 * stopped also sees one of the two flags, and takes no such process for one that somebody else has stopped.
 * `has_stopped` is set by the brake and cleared by the main thread. The main thread releases the brake before each
 * freeze of its own, which ends the brake's rounds, and clears `has_stopped` before it judges. A brake that had passed its test by then, and stops
 * everything after the thaw, sets `has_stopped` afterwards: the next look of the main thread freezes and thaws again.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sysinfo.h>
#include <time.h>
#include <unistd.h>

/* For stopping everything. */
static const int64_t MOST_NANOSECONDS = 3000000000;
/* A released brake goes on looking for so many rounds: commands that follow each other need not wake the thread each. */
enum { IDLE_ROUNDS = 50, STACK_BYTES = 64 * 1024, LOADAVG_BYTES = 128, LOADAVG_SPACES = 4 };

static _Atomic int64_t stop_at, counted_from;
static _Atomic int64_t look_by; /* nanoseconds of CLOCK_MONOTONIC; 0: the next look may come at any time */
static _Atomic int is_stopping, has_stopped, is_asleep;
static _Atomic int has_been_called; /* the main thread looks again, and will freeze */
static int quiet_rounds; /* of SIGSTOP, after which everything stands still */
static sem_t wake_up;
static int loadavg = -1; /* -1: sysinfo(2) counts the tasks of the namespace, as in gVisor */
static struct timespec pause_between_looks;

/* The pid that the namespace gave out last: the fifth field of /proc/loadavg, proc_loadavg(5). -1: unknown. */
static int64_t newest_pid(void)
{
    char text[LOADAVG_BYTES];
    ssize_t n = pread(loadavg, text, sizeof text - 1, 0);
    if (n <= 0)
        return -1;
    text[n] = '\0';
    char *field = text;
    for (int spaces = 0; spaces < LOADAVG_SPACES; spaces++) {
        field = strchr(field, ' ');
        if (field == NULL)
            return -1;
        field++;
    }
    return strtoll(field, NULL, 10);
}

static int64_t count(void)
{
    struct sysinfo found;
    if (loadavg >= 0)
        return newest_pid();
    return sysinfo(&found) == 0 ? found.procs : -1;
}

static int64_t now(void)
{
    struct timespec found;
    (void)clock_gettime(CLOCK_MONOTONIC, &found);
    return (int64_t)found.tv_sec * 1000000000 + found.tv_nsec;
}

/*
 * Linux: one round, since kill(-1) and fork(2) exclude each other. gVisor: a fork under way goes on, and its child is
 * reached by a later round only; and the main thread may be held in vfork(2) by a child that the first round stopped, so
 * nobody else would send a second round. fork_bombs.py says why the nudges, and does the same for a freeze of its own.
 */
static void stop_everything(void)
{
    static const int nudges[] = {SIGTSTP, SIGTTIN, SIGTTOU};
    enum { NUDGES = sizeof nudges / sizeof *nudges };
    int64_t before = -1, end = now() + MOST_NANOSECONDS;
    int n_quiet = 0;
    has_been_called = 0;
    for (int round = 0;; round++) {
        (void)kill(-1, SIGSTOP);
        if (round > 0)
            (void)kill(-1, nudges[round % NUDGES]);
        if (n_quiet >= quiet_rounds || has_been_called || now() > end)
            return;
        (void)nanosleep(&pause_between_looks, NULL);
        int64_t found = count();
        n_quiet = found <= before ? n_quiet + 1 : 0;
        before = found;
    }
}

static void *watch(void *unused)
{
    /* Where that is allowed (CAP_SYS_NICE), ahead of every process with an ordinary policy, however many there are. */
    const struct sched_param lowest = {.sched_priority = 1};
    (void)sched_setscheduler(0, SCHED_RR | SCHED_RESET_ON_FORK, &lowest);
    for (int idle_rounds = 0;; idle_rounds++) {
        if (stop_at != 0)
            idle_rounds = 0;
        else if (idle_rounds > IDLE_ROUNDS) {
            is_asleep = 1;
            if (stop_at == 0) /* armed after this test: the main thread has seen is_asleep, and posts */
                (void)sem_wait(&wake_up);
            is_asleep = 0;
        }
        (void)nanosleep(&pause_between_looks, NULL);
        int64_t found = count(), limit = stop_at, deadline = look_by;
        int is_late = deadline != 0 && now() > deadline;
        /* Past the largest pid the kernel begins again with small ones: the main thread arms anew at its next look. */
        int has_grown = found > limit && found >= counted_from;
        if (limit == 0 || !(has_grown || is_late))
            continue;
        stop_at = 0;
        is_stopping = 1;
        stop_everything();
        has_stopped = 1;
        is_stopping = 0;
    }
    return unused;
}

/* Start the thread, for life; released. Returns 0, or an error number. */
int execd_brake_start(int loadavg_fd, uint64_t pause_nanoseconds, int n_quiet_rounds)
{
    sigset_t all, before;
    pthread_attr_t attributes;
    pthread_t thread;
    if (getpid() != 1)
        return EPERM; /* kill(-1) would stop the user's machine */
    loadavg = loadavg_fd;
    quiet_rounds = n_quiet_rounds;
    pause_between_looks.tv_sec = (time_t)(pause_nanoseconds / 1000000000);
    pause_between_looks.tv_nsec = (long)(pause_nanoseconds % 1000000000);
    if (sem_init(&wake_up, 0, 0) != 0)
        return errno;
    int error = pthread_attr_init(&attributes);
    if (error != 0)
        return error;
    (void)pthread_attr_setstacksize(&attributes, STACK_BYTES);
    (void)pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    sigfillset(&all); /* signals are the main thread's */
    pthread_sigmask(SIG_SETMASK, &all, &before);
    error = pthread_create(&thread, &attributes, watch, NULL);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attributes);
    return error;
}

/*
 * Stop everything when the count, `from` now, passes `limit`, or when the next call comes later than `patience`
 * nanoseconds from now (0: it may). limit 0: release the brake.
 */
void execd_brake_arm(int64_t from, int64_t limit, int64_t patience)
{
    has_been_called = 1;
    look_by = patience == 0 ? 0 : now() + patience;
    counted_from = from;
    stop_at = limit;
    if (limit != 0 && atomic_exchange(&is_asleep, 0))
        (void)sem_post(&wake_up);
}

/* Whether the brake has stopped everything since the last call, or is about to. */
int execd_brake_fired(void)
{
    /* In this order: a brake that ends its rounds between the two sets has_stopped first. */
    int is_about_to = is_stopping;
    return atomic_exchange(&has_stopped, 0) || is_about_to;
}
