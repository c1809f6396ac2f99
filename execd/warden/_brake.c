/*
 * The brake: a thread of the warden that stops every process of the warden's PID namespace when
 * tasks grow faster than the warden follows, or when the warden does not get the CPU. brake.py
 * loads the functions of this file. fork_bombs.py says when to arm the brake, and thaws.
 *
 * Why a thread in C. Natively each session has an equal share of the CPU (sched(7), autogroup).
 * Beside a thousand busy sessions the warden waits 50 ms after each 0.1 ms of work, and a bomb of
 * sessions doubles in that time; a turn of the warden's loop takes 1 to 20 ms of work. The thread
 * needs 0.02 ms. In Python the thread would wait for the GIL, which the starved main thread holds.
 *
 * The dead man's switch. The main thread arms the brake at each count of tasks, and names the time
 * by which the next call is due. Processes that only compute starve a warden as well as processes
 * that fork. Where the kernel gives the thread a real-time policy, the thread stops everything at
 * that time, and the main thread counts, decides and thaws undisturbed.
 *
 * What the threads share: atomic words without a lock.
 *   stop_at, counted_from, call_due  Written by the main thread; the brake clears stop_at before
 *                                    the brake stops everything. A brake that sees the new value of
 *                                    one word and the old value of another stops everything once
 *                                    too often, which costs a thaw.
 *   has_been_called                  Set by the main thread at each call, cleared by the brake
 *                                    before the rounds. The brake then ends the rounds.
 *   is_stopping                      Written by the brake: set while the brake sends SIGSTOP.
 *   has_stopped                      Set by the brake after the rounds, cleared by the main thread.
 *   is_asleep                        Set by the brake before the brake sleeps, cleared by the
 *                                    thread that ends the sleep.
 *
 * Race 1: the main thread sees a process that the brake has stopped. Either the brake is still in
 * its rounds, and is_stopping is set; or the rounds are over, and has_stopped is set. So the main
 * thread never takes the stop for a stop by user code.
 *
 * Race 2: the main thread releases the brake while the brake decides. The brake sets is_stopping
 * first, and then swaps stop_at, as the brake has seen stop_at, for 0. If the swap comes before the
 * release, the main thread, which reads is_stopping after the release, learns of the stop. If the
 * release comes first, the swap fails, and the brake stops nothing. A brake that is still in its
 * rounds when the main thread thaws sets has_stopped after the rounds, and the next check of the
 * main thread freezes and thaws again.
 *
 * Race 3: the main thread arms while the brake falls asleep. If the brake sets is_asleep first, the
 * main thread sees is_asleep and posts wake_up. If the main thread sets stop_at first, the brake
 * sees stop_at and does not sleep.
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

/* How long the brake may send rounds of SIGSTOP. */
static const int64_t MOST_NANOSECONDS = 3000000000;
/* A released brake goes on counting for IDLE_ROUNDS before the thread sleeps, so that programs that
 * start one after another need not wake the thread each time. */
enum { IDLE_ROUNDS = 3, STACK_BYTES = 64 * 1024, LOADAVG_BYTES = 128, LOADAVG_SPACES = 4 };

static _Atomic int64_t stop_at, counted_from;
/* Nanoseconds of CLOCK_MONOTONIC; 0: the next call may come at any time. */
static _Atomic int64_t call_due;
static _Atomic int is_stopping, has_stopped, is_asleep;
static _Atomic int has_been_called;
/* Everything stands still after so many rounds of SIGSTOP in a row that found no new task. */
static int quiet_rounds;
static sem_t wake_up;
static int loadavg = -1; /* of execd_brake_count */
static struct timespec pause_between_counts;

/* The pid that the namespace gave out last, the fifth field of an open /proc/loadavg
 * (proc_loadavg(5)); -1: unknown. */
int64_t execd_newest_pid(int loadavg_fd)
{
    char text[LOADAVG_BYTES];
    ssize_t n = pread(loadavg_fd, text, sizeof text - 1, 0);
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

/* A figure that grows by 1 with each new task; -1: unknown. loadavg_fd: an open /proc/loadavg; -1:
 * sysinfo(2) counts the tasks of the namespace, as in gVisor. */
int64_t execd_brake_count(int loadavg_fd)
{
    struct sysinfo found;
    if (loadavg_fd >= 0)
        return execd_newest_pid(loadavg_fd);
    return sysinfo(&found) == 0 ? found.procs : -1;
}

static int64_t count(void)
{
    return execd_brake_count(loadavg);
}

/* Nanoseconds of CLOCK_MONOTONIC. */
static int64_t now(void)
{
    struct timespec found;
    (void)clock_gettime(CLOCK_MONOTONIC, &found);
    return (int64_t)found.tv_sec * 1000000000 + found.tv_nsec;
}

/*
 * Send rounds of SIGSTOP to every process of the namespace but the init.
 *
 * Linux: one round, since the child of a fork that is under way is born stopped. gVisor: a fork
 * under way goes on, and only a later round reaches the child. The main thread cannot send that
 * round: the main thread may be held in vfork(2) by a child that the first round stopped.
 * fork_bombs.py gives the reason for the nudges, and sends the same rounds for a freeze of the main
 * thread.
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
        (void)nanosleep(&pause_between_counts, NULL);
        int64_t found = count();
        n_quiet = found <= before ? n_quiet + 1 : 0;
        before = found;
    }
}

static void *watch(void *unused)
{
    /* Where allowed (CAP_SYS_NICE), run ahead of every process with an ordinary policy. */
    const struct sched_param lowest = {.sched_priority = 1};
    (void)sched_setscheduler(0, SCHED_RR | SCHED_RESET_ON_FORK, &lowest);
    for (int idle_rounds = 0;; idle_rounds++) {
        if (stop_at != 0)
            idle_rounds = 0;
        else if (idle_rounds > IDLE_ROUNDS) {
            is_asleep = 1;
            if (stop_at == 0) /* race 3 */
                (void)sem_wait(&wake_up);
            is_asleep = 0;
        }
        (void)nanosleep(&pause_between_counts, NULL);
        int64_t found = count(), limit = stop_at, deadline = call_due;
        int is_late = deadline != 0 && now() > deadline;
        /* Past the largest pid the kernel begins again with small pids. A count below counted_from
         * is then no growth, and the main thread arms with new figures at the next count. */
        int has_grown = found > limit && found >= counted_from;
        if (limit == 0 || !(has_grown || is_late))
            continue;
        is_stopping = 1;
        if (!atomic_compare_exchange_strong(&stop_at, &limit, 0)) { /* race 2 */
            is_stopping = 0;
            continue;
        }
        stop_everything();
        has_stopped = 1;
        is_stopping = 0;
    }
    return unused;
}

/* Start the thread, for the life of the process, with the brake released. Returns 0, or an error
 * number. */
int execd_brake_start(int loadavg_fd, uint64_t pause_nanoseconds, int n_quiet_rounds)
{
    sigset_t all, before;
    pthread_attr_t attributes;
    pthread_t thread;
    if (getpid() != 1)
        return EPERM; /* kill(-1) would stop the user's machine */
    loadavg = loadavg_fd;
    quiet_rounds = n_quiet_rounds;
    pause_between_counts.tv_sec = (time_t)(pause_nanoseconds / 1000000000);
    pause_between_counts.tv_nsec = (long)(pause_nanoseconds % 1000000000);
    if (sem_init(&wake_up, 0, 0) != 0)
        return errno;
    int error = pthread_attr_init(&attributes);
    if (error != 0)
        return error;
    (void)pthread_attr_setstacksize(&attributes, STACK_BYTES);
    (void)pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    sigfillset(&all); /* the main thread handles the signals */
    pthread_sigmask(SIG_SETMASK, &all, &before);
    error = pthread_create(&thread, &attributes, watch, NULL);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attributes);
    return error;
}

/*
 * Stop everything when the count, now `from`, passes `limit`, or when the next call comes later
 * than `patience` nanoseconds from now (0: the next call may come at any time). limit 0: release
 * the brake.
 */
void execd_brake_arm(int64_t from, int64_t limit, int64_t patience)
{
    has_been_called = 1;
    call_due = patience == 0 ? 0 : now() + patience;
    counted_from = from;
    stop_at = limit;
    if (limit != 0 && atomic_exchange(&is_asleep, 0))
        (void)sem_post(&wake_up);
}

/* Whether the brake has stopped everything since the last call of this function, or is about to. */
int execd_brake_fired(void)
{
    /* In this order: a brake that ends its rounds between the two reads has set has_stopped. */
    int is_about_to = is_stopping;
    return atomic_exchange(&has_stopped, 0) || is_about_to;
}

/* As execd_brake_fired, and the next call of that function returns the same. */
int execd_brake_may_have_fired(void)
{
    int is_about_to = is_stopping;
    return has_stopped || is_about_to;
}
