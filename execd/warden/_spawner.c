/*
 * All starts: programs are received, started, reaped and reported by one call. spawner.py is the
 * front, and says why, and what is left to the caller.
 *
 * A program is reaped here only with a proof that the program has left nothing. Natively the proof
 * is the newest pid. The kernel gives out the pids of a namespace in ascending order, to processes
 * and threads alike, and /proc/loadavg tells the newest pid (proc_loadavg(5)). A dead child that
 * nobody has reaped yet keeps its pid. So when the newest pid is then still the child's, nothing
 * was created after the child, and the child has no descendants. Privileged code may choose pids
 * (clone3(2), set_tid) or move the newest pid (ns_last_pid); both take capabilities that no command
 * has (root_capabilities.py).
 *
 * Several programs in flight have one proof. Their pids are consecutive, so no other task began
 * between the first and the last; and the newest pid is the last program's, so none began since.
 *
 * In gVisor it is the proof of _children.c.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "../proc/_spawn.h"
#include "_children.h"

/* _brake.c */
int64_t execd_newest_pid(int loadavg);
int64_t execd_brake_count(int loadavg);
void execd_brake_arm(int64_t from, int64_t limit, int64_t patience);
int execd_brake_may_have_fired(void);

/* What the main thread and the spawn watch share: spawn_watch.py. Nanoseconds of CLOCK_MONOTONIC;
 * 0: never, or no vfork is under way. */
struct spawn_watch {
    _Atomic int64_t begun_at, last_begun_at;
    _Atomic int32_t is_asleep;
    int32_t killed_pid; /* written while the main thread is held */
};

/* Note that the main thread is about to vfork. Returns whether the watch sleeps, or is about to.
 * The watch first says that it sleeps, and then looks for a start; here the order is the reverse.
 * So either the watch sees the start, or the caller learns that the watch sleeps. */
int execd_watch_begin(struct spawn_watch *watch, int64_t now)
{
    watch->killed_pid = 0;
    watch->last_begun_at = now;
    watch->begun_at = now;
    return watch->is_asleep;
}

/* For the watch: whether the last start is more than `awake` nanoseconds ago. */
int execd_watch_may_sleep(struct spawn_watch *watch, int64_t now, int64_t awake)
{
    watch->is_asleep = 1;
    if (now - watch->last_begun_at < awake)
        watch->is_asleep = 0;
    return watch->is_asleep;
}

enum {
    MAX_IN_FLIGHT = 8,
    MAX_LIMITS = 24,
    HEADER_BYTES = 2, /* the form, and the number of descriptors: message_codec.py */
    FORM_INLINE = 0,
    MAX_DATAGRAM_BYTES = 64 * 1024 + HEADER_BYTES,
    KIND_SPAWN = 1,
    KIND_EXITED = 2,
    NULL_DEVICE = -1, /* messages.py */
    NULL_FD = 0,      /* of /dev/null, which the warden has opened in this place */
};

/* packed_messages.py */
enum { FLAG_TERMINAL = 1, FLAG_IS_IDLE = 2, FLAG_ANNOUNCE = 4 };

/* The fixed fields of packed_messages.py. */
struct packed_spawn {
    uint8_t kind, flags, n_limits, n_stdio;
    int32_t n_groups;
    uint32_t uid, gid;
    uint16_t marker_bytes;
    uint32_t program_bytes;
    uint64_t tag, processes, memory_bytes;
} __attribute__((packed));

struct packed_limit {
    int32_t resource;
    uint64_t soft, hard;
} __attribute__((packed));

struct packed_exited {
    uint8_t kind;
    uint64_t tag;
    int64_t pid;
    double spawned_at, at;
    int64_t wait_status;
    double user_seconds, system_seconds;
    uint64_t max_rss_bytes, peak_tree_bytes, processes;
    double spawn_seconds;
    uint8_t is_direct;
} __attribute__((packed));

/* What the kernel tells of a program that has ended: wait4(2). */
struct program_end {
    int32_t wait_status;
    int32_t unused;
    int64_t max_rss_kib;
    double user_seconds, system_seconds;
};

/* A message, and the program that the message has started, if any. */
struct started_program {
    const char *datagram; /* until the next call */
    int64_t datagram_bytes;
    int64_t pid; /* 0: nothing was started */
    int64_t begun_at, spawned_at;
    int32_t is_direct, has_ended; /* an ended program is reaped */
    struct program_end end;
    int32_t n_fds;
    int32_t fds[MAX_FDS]; /* that came with the message */
    int64_t until;             /* how long the program may be in flight */
    int64_t look_at, cpu_time; /* the next look; at the last look */
    int32_t is_given_back;     /* to the caller, who lets the others go on */
};

/* Why a call has ended: spawner.py. */
enum end_of_call {
    TIME_IS_OVER = 1,
    STRANGER_HAS_ENDED = 2,
    PROGRAMS_WAIT = 3,
    CALLER_TAKES_ALL = 4,
};

struct spawner {
    /* For life. */
    int32_t channel, signals;
    int32_t in_gvisor;
    int32_t loadavg, children; /* -1: natively children, and in gVisor loadavg, or both */
    int32_t spawn_flags;       /* of a program without a terminal */
    int32_t oom_score_fd, oom_score, nice, n_limits;
    const struct limit *limits; /* before the limits of the message */
    int64_t patience;           /* how long a program may be in flight */
    int64_t look_pause;         /* between two looks at a program; 0: no look */
    struct spawn_watch *watch;
    /* For a call. */
    int64_t until;
    int32_t goes_on;   /* the programs of the last call that are not given back are in flight */
    int32_t may_start; /* else the call only waits for the programs in flight */
    int64_t brake_base, brake_spare; /* see arm_brake */
    int64_t known_peak_kib;          /* a larger program did not inherit the figure */
    int64_t least_limit; /* of processes, of the programs in flight; 0: none has a limit */
    int32_t may_arm;
    int64_t noted_at; /* the known children of _children.c */
    /* Results. */
    int32_t end_of_call;
    int32_t stranger;
    int32_t n_programs;
    int32_t has_more; /* a child may wait to be reaped, and has no SIGCHLD any more */
    int64_t n_forgotten, counted_pid;
    int64_t armed_from, armed_limit;
    struct started_program received; /* a message for the caller, if it has bytes */
    struct started_program programs[MAX_IN_FLIGHT];
};

/* Nanoseconds. In this time nobody makes as many tasks as there are pids. */
static const int64_t SOON = 100000000, SOON_IN_GVISOR = 2000000000;

static char datagrams[MAX_IN_FLIGHT + 1][MAX_DATAGRAM_BYTES];

static struct children known_children;

static int64_t nanoseconds(struct timespec time)
{
    return (int64_t)time.tv_sec * 1000000000 + time.tv_nsec;
}

static int64_t now(void)
{
    struct timespec found;
    (void)clock_gettime(CLOCK_MONOTONIC, &found);
    return nanoseconds(found);
}

/* Nanoseconds of CPU time of a process, with its threads: clock_getcpuclockid(3) without the C
 * library's question whether the process is there. 0: unknown. gVisor counts a process that runs at
 * a tick of 10 ms as running since the last tick. */
static int64_t cpu_time(int64_t pid)
{
    enum { SCHEDULED = 2 };
    struct timespec found;
    clockid_t clock = (clockid_t)(~(uint32_t)pid << 3 | SCHEDULED);
    if (clock_gettime(clock, &found) != 0)
        return 0;
    return nanoseconds(found);
}

/* A buffer of no program in flight. */
static char *free_datagram(const struct spawner *spawner)
{
    for (int i = 0;; i++) {
        int is_used = 0;
        for (int j = 0; j < spawner->n_programs; j++)
            is_used |= spawner->programs[j].datagram == datagrams[i];
        if (!is_used)
            return datagrams[i];
    }
}

/* Receive a message into `spawner->received`. Returns 0 if there is none: the caller then meets the
 * reason. */
static int receive(struct spawner *spawner)
{
    union {
        struct cmsghdr header;
        char bytes[CMSG_SPACE(MAX_FDS * sizeof(int32_t))];
    } control;
    struct started_program *received = &spawner->received;
    char *datagram = free_datagram(spawner);
    struct iovec into = {.iov_base = datagram, .iov_len = MAX_DATAGRAM_BYTES};
    struct msghdr message = {.msg_iov = &into, .msg_iovlen = 1, .msg_control = &control,
                             .msg_controllen = sizeof control};
    ssize_t n = recvmsg(spawner->channel, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (n <= 0)
        return 0;
    memset(received, 0, sizeof *received);
    received->datagram = datagram;
    received->datagram_bytes = n;
    for (struct cmsghdr *part = CMSG_FIRSTHDR(&message); part; part = CMSG_NXTHDR(&message, part))
        if (part->cmsg_level == SOL_SOCKET && part->cmsg_type == SCM_RIGHTS) {
            size_t size = part->cmsg_len - CMSG_LEN(0);
            received->n_fds = (int32_t)(size / sizeof(int32_t));
            memcpy(received->fds, CMSG_DATA(part), size);
        }
    return 1;
}

/* Take the request of a Spawn apart. Returns 0 for every other message, and for a Spawn that is
 * malformed or has lost descriptors on the way. */
static int parse(const struct spawner *spawner, struct packed_spawn *fields, struct limit *limits,
                 int32_t *fds, struct spawn_request *request)
{
    static gid_t groups[NGROUPS_MAX];
    const struct started_program *received = &spawner->received;
    const char *payload = received->datagram + HEADER_BYTES;
    int64_t size = received->datagram_bytes - HEADER_BYTES;
    if (size < (int64_t)sizeof *fields || received->datagram[0] != FORM_INLINE ||
        received->datagram[1] != received->n_fds)
        return 0;
    memcpy(fields, payload, sizeof *fields);
    int32_t n_groups = fields->n_groups < 0 ? 0 : fields->n_groups;
    if (fields->kind != KIND_SPAWN || n_groups > NGROUPS_MAX || fields->n_stdio < 3 ||
        fields->n_stdio > MAX_FDS || spawner->n_limits + fields->n_limits > MAX_LIMITS)
        return 0;
    int64_t limits_at = sizeof *fields;
    int64_t stdio_at = limits_at + fields->n_limits * (int64_t)sizeof(struct packed_limit);
    int64_t groups_at = stdio_at + fields->n_stdio * (int64_t)sizeof(int32_t);
    int64_t marker_at = groups_at + n_groups * (int64_t)sizeof(gid_t);
    int64_t program_at = marker_at + fields->marker_bytes;
    if (program_at + fields->program_bytes != size)
        return 0;
    memcpy(groups, payload + groups_at, (size_t)n_groups * sizeof(gid_t));
    memcpy(limits, spawner->limits, (size_t)spawner->n_limits * sizeof *limits);
    for (int i = 0; i < fields->n_limits; i++) {
        struct packed_limit limit;
        memcpy(&limit, payload + limits_at + i * (int64_t)sizeof limit, sizeof limit);
        limits[spawner->n_limits + i] = (struct limit){limit.resource, 0, limit.soft, limit.hard};
    }
    for (int i = 0; i < fields->n_stdio; i++) {
        int32_t index;
        memcpy(&index, payload + stdio_at + i * (int64_t)sizeof index, sizeof index);
        if (index == NULL_DEVICE)
            fds[i] = i < 3 ? KEEP_FD : NULL_FD;
        else if (index < 0 || index >= received->n_fds)
            return 0;
        else
            fds[i] = received->fds[index];
    }
    /* A program with a terminal leads a session in any case. */
    uint32_t flags = fields->flags & FLAG_TERMINAL ? FLAG_CONTROLLING_TERMINAL
                                                   : (uint32_t)spawner->spawn_flags;
    *request = (struct spawn_request){
        .size = sizeof *request,
        .flags = flags,
        .block = payload + program_at,
        .block_bytes = fields->program_bytes,
        .fds = fds,
        .limits = limits,
        .n_fds = fields->n_stdio,
        .n_limits = spawner->n_limits + fields->n_limits,
        .groups = groups,
        .n_groups = fields->n_groups < 0 ? -1 : n_groups,
        .uid = fields->uid, /* UINT32_MAX: keep */
        .gid = fields->gid,
        .nice = spawner->nice,
        .oom_score_fd = spawner->oom_score_fd,
        .oom_score = spawner->oom_score,
    };
    return 1;
}

/* Arm the brake with the figures of ForkBombs.brake_figures, for the lowest limit in flight: a
 * program may be a bomb that grows before the next count. */
static void arm_brake(struct spawner *spawner, uint64_t limit)
{
    if (limit > INT32_MAX)
        limit = INT32_MAX;
    if (limit != 0 && (spawner->least_limit == 0 || (int64_t)limit < spawner->least_limit))
        spawner->least_limit = (int64_t)limit;
    if (!spawner->may_arm || spawner->least_limit == 0)
        return;
    int64_t count = execd_brake_count(spawner->loadavg);
    if (count < 0)
        return; /* unknown: the next count arms the brake */
    /* What programs in flight have started does not raise the limit. (Natively their pids are
     * consecutive, or the call ends.) */
    if (spawner->in_gvisor && spawner->armed_limit != 0 && count > spawner->armed_from + 1)
        count = spawner->armed_from + 1;
    int64_t room = spawner->brake_base + spawner->least_limit;
    spawner->armed_from = count;
    spawner->armed_limit = count + (room > 0 ? room : 0) + spawner->brake_spare;
    execd_brake_arm(spawner->armed_from, spawner->armed_limit, 0);
}

static void release_brake(struct spawner *spawner)
{
    if (spawner->armed_limit != 0)
        execd_brake_arm(0, 0, 0);
    spawner->armed_limit = spawner->least_limit = 0;
}

/* Start the received program. Returns the failure; with STEP_NONE the program is in flight.
 * `watch_is_awake`: the caller has woken the spawn watch. */
static struct failure start(struct spawner *spawner, int watch_is_awake)
{
    struct packed_spawn fields;
    struct limit limits[MAX_LIMITS];
    int32_t fds[MAX_FDS];
    struct spawn_request request;
    struct spawn_result result = {0};
    struct started_program *received = &spawner->received;
    if (!parse(spawner, &fields, limits, fds, &request))
        return (struct failure){STEP_REQUEST, EINVAL};
    if (spawner->in_gvisor && spawner->n_programs == 0) {
        int is_known = execd_note_children(spawner->children, &known_children);
        spawner->noted_at = is_known ? now() : -SOON_IN_GVISOR; /* no list, no proof */
    }
    arm_brake(spawner, fields.processes);
    received->begun_at = now();
    if (execd_watch_begin(spawner->watch, received->begun_at) && !watch_is_awake)
        result.failure = (struct failure){STEP_FORK, EAGAIN};
    else
        received->pid = execd_spawn(&request, &result);
    spawner->watch->begun_at = 0;
    /* A child that the watch has killed before the exec has run nothing of the program. */
    if (result.failure.step == STEP_NONE && spawner->watch->killed_pid == received->pid)
        result.failure = (struct failure){STEP_FORK, EAGAIN};
    if (result.failure.step != STEP_NONE) {
        received->pid = 0;
        if (spawner->n_programs == 0)
            release_brake(spawner);
        return result.failure;
    }
    received->spawned_at = now();
    received->look_at = INT64_MAX;
    if (spawner->look_pause != 0)
        received->look_at = received->spawned_at + spawner->look_pause;
    received->is_direct = result.was_direct;
    /* The daemon waits for the word of some starts. */
    received->until = fields.flags & FLAG_ANNOUNCE ? 0 : received->spawned_at + spawner->patience;
    spawner->programs[spawner->n_programs++] = *received;
    received->datagram_bytes = 0;
    return result.failure;
}

/* Report the end to the daemon. Returns 0 if the caller has to: the daemon takes no message at
 * present, or the program was larger than the warden has ever been (own_peak.py). */
static int report(const struct spawner *spawner, const struct started_program *program)
{
    struct packed_spawn fields;
    struct {
        uint8_t form, n_fds;
        struct packed_exited exited;
    } __attribute__((packed)) datagram;
    const struct program_end *end = &program->end;
    if (end->max_rss_kib > spawner->known_peak_kib)
        return 0;
    memcpy(&fields, program->datagram + HEADER_BYTES, sizeof fields);
    memset(&datagram, 0, sizeof datagram);
    datagram.form = FORM_INLINE;
    datagram.exited = (struct packed_exited){
        .kind = KIND_EXITED,
        .tag = fields.tag,
        .pid = program->pid,
        .spawned_at = (double)program->spawned_at / 1e9,
        .at = (double)now() / 1e9,
        .wait_status = end->wait_status,
        .user_seconds = end->user_seconds,
        .system_seconds = end->system_seconds,
        .processes = 1,
        .spawn_seconds = (double)(program->spawned_at - program->begun_at) / 1e9,
        .is_direct = program->is_direct != 0,
    };
    return send(spawner->channel, &datagram, sizeof datagram, MSG_NOSIGNAL | MSG_DONTWAIT) ==
           (ssize_t)sizeof datagram;
}

static double seconds(struct timeval time)
{
    return (double)time.tv_sec + (double)time.tv_usec / 1e6;
}

/* waitid(2) also tells of a stop, without WSTOPPED, if the child has made the caller its tracer:
 * CLD_TRAPPED, and in gVisor CLD_KILLED by a signal that no kernel has. */
static int has_ended(int64_t pid)
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
static pid_t ended_child(void)
{
    siginfo_t found = {.si_pid = 0};
    return waitid(P_ALL, 0, &found, WEXITED | WNOHANG | WNOWAIT) == 0 ? found.si_pid : 0;
}

/* Whether the programs in flight, ended or not, have started nothing: natively nothing at all, in
 * gVisor nothing that is left of the ended ones. */
static int has_nothing_new(struct spawner *spawner)
{
    int64_t last_pid = spawner->programs[spawner->n_programs - 1].pid;
    if (spawner->in_gvisor) {
        int64_t in_flight[MAX_IN_FLIGHT], time = now();
        for (int i = 0; i < spawner->n_programs; i++)
            in_flight[i] = spawner->programs[i].pid;
        /* An id of a known thread that has ended may be given out again, but not so soon. */
        if (time - spawner->noted_at > SOON_IN_GVISOR ||
            !execd_has_no_new_child(spawner->children, &known_children, in_flight,
                                    spawner->n_programs))
            return 0;
        spawner->noted_at = time;
        return 1;
    }
    if (spawner->counted_pid > last_pid) {
        /* The last program has ended before and is reaped. Its number is free, but the kernel does
         * not come back to the number so soon. (Past the largest pid the kernel begins again with
         * small pids: then nothing is proved any more in this call.) */
        if (now() - spawner->programs[0].spawned_at > SOON)
            return 0;
        last_pid = spawner->counted_pid;
    }
    if (execd_newest_pid(spawner->loadavg) != last_pid)
        return 0;
    spawner->counted_pid = last_pid;
    return 1;
}

/* Reap the programs that have ended, and report their ends. Returns 0 if the caller has to go on: a
 * program has left something, or an end is not reported. */
static int reap(struct spawner *spawner)
{
    int ended[MAX_IN_FLIGHT], n_ended = 0, n_left = 0, is_done = 1;
    for (int i = 0; i < spawner->n_programs; i++)
        n_ended += ended[i] = has_ended(spawner->programs[i].pid);
    if (n_ended == 0)
        return 1;
    if (!has_nothing_new(spawner))
        return 0;
    for (int i = 0; i < spawner->n_programs; i++) {
        struct started_program *program = &spawner->programs[i];
        struct rusage usage;
        if (ended[i] && wait4((pid_t)program->pid, &program->end.wait_status, WNOHANG, &usage) ==
                            (pid_t)program->pid) {
            program->has_ended = 1;
            program->end.max_rss_kib = usage.ru_maxrss;
            program->end.user_seconds = seconds(usage.ru_utime);
            program->end.system_seconds = seconds(usage.ru_stime);
            spawner->n_forgotten++;
            /* First the pipes, then the report: the daemon reads the pipes next, and would wait in
             * a further turn of its loop for pipes that are still open here. */
            while (program->n_fds > 0)
                (void)close(program->fds[--program->n_fds]);
            if (report(spawner, program))
                continue;
            is_done = 0;
        }
        spawner->programs[n_left++] = *program;
    }
    spawner->n_programs = n_left;
    if (n_left == 0)
        release_brake(spawner);
    return is_done;
}

static int is_in_flight(const struct spawner *spawner, pid_t pid)
{
    for (int i = 0; i < spawner->n_programs; i++)
        if (spawner->programs[i].pid == pid)
            return 1;
    return 0;
}

/* Give back the programs that wait, and those that have been in flight for too long. Returns when
 * the next of them may be due; 0: some are given back. A program waits if it has not computed
 * between two looks. */
static int64_t give_back(struct spawner *spawner, int64_t time)
{
    int64_t next = INT64_MAX;
    int are_given_back = 0;
    for (int i = 0; i < spawner->n_programs; i++) {
        struct started_program *program = &spawner->programs[i];
        int64_t end = program->until;
        if (program->look_at <= time) {
            int64_t before = program->cpu_time;
            program->cpu_time = cpu_time(program->pid);
            program->is_given_back = program->cpu_time <= before;
            program->look_at = time + spawner->look_pause;
        }
        program->is_given_back |= end <= time;
        are_given_back |= program->is_given_back;
        if (program->look_at < end)
            end = program->look_at;
        if (end < next)
            next = end;
    }
    return are_given_back ? 0 : next;
}

/* Forget the programs that the caller has taken from the last call. They are known children now. */
static void forget_given_back(struct spawner *spawner)
{
    int n_left = 0;
    for (int i = 0; i < spawner->n_programs; i++) {
        struct started_program *program = &spawner->programs[i];
        if (!program->is_given_back)
            spawner->programs[n_left++] = *program;
        else if (!execd_add_child(&known_children, program->pid))
            spawner->noted_at = -SOON_IN_GVISOR; /* there is no proof with half a list */
    }
    spawner->n_programs = n_left;
}

/* Read the signal, if one has come, and reap. First the signal is taken, and then the questions are
 * asked: one signal is for all children that have ended or stopped meanwhile (signal(7)). Returns
 * why the call ends; 0: the call goes on. */
static int take_ends(struct spawner *spawner, int is_signalled)
{
    struct signalfd_siginfo taken;
    if (is_signalled)
        (void)!read(spawner->signals, &taken, sizeof taken);
    spawner->has_more = 1;
    if (!reap(spawner))
        return CALLER_TAKES_ALL;
    /* Beside programs in flight another child may have ended, or a program may have stopped, with
     * the caller as its tracer. Natively the caller looks soon enough, and the programs are too
     * young to become jobs for that. */
    if (spawner->n_programs == 0 || spawner->in_gvisor) {
        pid_t pid = ended_child();
        spawner->has_more = pid != 0;
        if (pid != 0 && !is_in_flight(spawner, pid)) {
            spawner->stranger = pid;
            return STRANGER_HAS_ENDED;
        }
    }
    return 0;
}

/* Whether the caller has nothing to do before the start. Memory is read before a tree with a limit
 * of memory begins; a lost descriptor is a failure with a word of its own. */
static int is_for_us(const struct spawner *spawner)
{
    struct packed_spawn fields;
    const struct started_program *received = &spawner->received;
    if (received->datagram_bytes < HEADER_BYTES + (int64_t)sizeof fields ||
        received->datagram[0] != FORM_INLINE || received->datagram[1] != received->n_fds)
        return 0;
    memcpy(&fields, received->datagram + HEADER_BYTES, sizeof fields);
    return fields.memory_bytes == 0;
}

/* See execd_serve. Returns why the call ends. */
static int serve(struct spawner *spawner)
{
    int is_over = 0, may_have_ended = spawner->goes_on && spawner->has_more;
    while (!is_over && !execd_brake_may_have_fired()) {
        int64_t time = now();
        /* A program that has ended waits too, and then there is a signal to read. */
        int64_t end = give_back(spawner, time);
        if (spawner->until < end &&
            (spawner->in_gvisor || spawner->n_programs == 0 || !spawner->may_start))
            end = spawner->until;
        /* User code can send SIGCHLD without end, and the daemon requests. */
        is_over = end <= time || (!spawner->may_start && spawner->n_programs == 0);
        int64_t rest = is_over || may_have_ended ? 0 : end - time;
        struct timespec timeout = {.tv_sec = (time_t)(rest / 1000000000),
                                   .tv_nsec = (long)(rest % 1000000000)};
        int has_room = spawner->may_start && spawner->n_programs < MAX_IN_FLIGHT &&
                       time < spawner->until;
        struct pollfd fds[] = {{.fd = spawner->signals, .events = POLLIN},
                               {.fd = has_room ? spawner->channel : -1, .events = POLLIN}};
        int n_ready = ppoll(fds, 2, &timeout, NULL);
        if (n_ready < 0)
            return CALLER_TAKES_ALL;
        if (fds[0].revents != 0 || may_have_ended) {
            if (spawner->n_programs == 0)
                return CALLER_TAKES_ALL;
            int why = take_ends(spawner, fds[0].revents != 0);
            if (why != 0)
                return spawner->in_gvisor ? why : CALLER_TAKES_ALL;
            may_have_ended = 0;
        }
        if (fds[1].revents != 0) {
            if (!receive(spawner) || !is_for_us(spawner) || start(spawner, 0).step != STEP_NONE)
                return CALLER_TAKES_ALL;
            const struct started_program *newest = &spawner->programs[spawner->n_programs - 1];
            if (!spawner->in_gvisor && spawner->n_programs > 1 && newest->pid != newest[-1].pid + 1)
                return CALLER_TAKES_ALL;
        }
    }
    if (!is_over || !spawner->in_gvisor)
        return CALLER_TAKES_ALL;
    for (int i = 0; i < spawner->n_programs; i++)
        if (spawner->programs[i].is_given_back)
            return PROGRAMS_WAIT;
    return TIME_IS_OVER;
}

static void begin_call(struct spawner *spawner)
{
    spawner->n_forgotten = spawner->counted_pid = 0;
    spawner->stranger = 0;
    spawner->received.datagram_bytes = 0;
    if (!spawner->goes_on) {
        spawner->n_programs = spawner->has_more = 0;
        spawner->armed_limit = spawner->least_limit = 0;
    }
    forget_given_back(spawner);
}

/* Start the programs that come, and reap those that end at once, until anything else is to be done,
 * until `spawner->until`, or until a program waits or has been in flight for too long. The caller
 * then takes over all that is left in `spawner`, or what is given back, and lets the call go on. */
void execd_serve(struct spawner *spawner)
{
    begin_call(spawner);
    spawner->end_of_call = serve(spawner);
}

/* Start a program that the caller has received. The program is in flight if result->step is
 * STEP_NONE, and the next call goes on with the program. A long message is given back by that call,
 * and has to live as long. */
void execd_start_one(struct spawner *spawner, const char *datagram, int64_t datagram_bytes,
                     const int32_t *fds, int32_t n_fds, struct failure *result)
{
    struct started_program *received = &spawner->received;
    int is_long = datagram_bytes > MAX_DATAGRAM_BYTES;
    begin_call(spawner);
    memset(received, 0, sizeof *received);
    if (!is_long)
        datagram = memcpy(free_datagram(spawner), datagram, (size_t)datagram_bytes);
    received->datagram = datagram;
    received->datagram_bytes = datagram_bytes;
    received->n_fds = n_fds;
    memcpy(received->fds, fds, (size_t)n_fds * sizeof *fds);
    *result = start(spawner, 1);
    if (result->step == STEP_NONE && is_long)
        spawner->programs[spawner->n_programs - 1].until = 0;
}

/* spawner.py declares the same structure. */
size_t execd_spawner_bytes(void)
{
    return sizeof(struct spawner);
}
