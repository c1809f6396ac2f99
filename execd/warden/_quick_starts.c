/*
 * Quick starts: plain programs are received, started, reaped and reported by one call.
 * quick_starts.py is the front, and says why, and what is left to the caller.
 *
 * A program is reaped here only with a proof that the program has left nothing. Natively that is
 * the proof of _early_end.c. Several programs in flight have one proof. Their pids are consecutive,
 * so no other task began between the first and the last; and the newest pid is the last program's,
 * so none began since. In gVisor it is the proof of _children.c.
 */
#define _GNU_SOURCE
#include <poll.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "../proc/_spawn.h"
#include "_children.h"
#include "_early_end.h"

/* _brake.c */
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
    NULL_FD = 0,      /* launcher.py */
};

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

/* A message, and the program that the message has started, if any. */
struct quick_program {
    const char *datagram; /* until the next call */
    int64_t datagram_bytes;
    int64_t pid; /* 0: nothing was started */
    int64_t begun_at, spawned_at;
    int32_t is_direct, has_ended; /* an ended program is reaped */
    struct early_end end;
    int32_t n_fds;
    int32_t fds[MAX_FDS]; /* that came with the message */
    int64_t look_at, cpu_time; /* the next look; at the last look */
    int32_t is_given_back;     /* to the caller, who lets the others go on */
};

/* Why a call has ended: quick_starts.py. */
enum end_of_call {
    TIME_IS_OVER = 1,
    STRANGER_HAS_ENDED = 2,
    PROGRAMS_WAIT = 3,
    CALLER_TAKES_ALL = 4,
};

struct quick_starts {
    /* For life. */
    int32_t channel, signals;
    int32_t loadavg, children; /* -1: natively children, and in gVisor loadavg */
    int32_t spawn_flags;       /* beside FLAG_IS_PREPARED */
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
    int32_t n_received;
    int32_t n_programs;
    int32_t has_more; /* as in early_end */
    int64_t n_forgotten, counted_pid;
    int64_t armed_from, armed_limit;
    struct quick_program received; /* a message for the caller, if it has bytes */
    struct quick_program programs[MAX_IN_FLIGHT];
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

static int in_gvisor(const struct quick_starts *quick)
{
    return quick->children >= 0;
}

/* A buffer of no program in flight. */
static char *free_datagram(const struct quick_starts *quick)
{
    for (int i = 0;; i++) {
        int is_used = 0;
        for (int j = 0; j < quick->n_programs; j++)
            is_used |= quick->programs[j].datagram == datagrams[i];
        if (!is_used)
            return datagrams[i];
    }
}

/* Receive a message into `quick->received`. Returns 0 if there is none: the caller then meets the
 * reason. */
static int receive(struct quick_starts *quick)
{
    union {
        struct cmsghdr header;
        char bytes[CMSG_SPACE(MAX_FDS * sizeof(int32_t))];
    } control;
    struct quick_program *received = &quick->received;
    char *datagram = free_datagram(quick);
    struct iovec into = {.iov_base = datagram, .iov_len = MAX_DATAGRAM_BYTES};
    struct msghdr message = {.msg_iov = &into, .msg_iovlen = 1, .msg_control = &control,
                             .msg_controllen = sizeof control};
    ssize_t n = recvmsg(quick->channel, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (n <= 0)
        return 0;
    quick->n_received++;
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

/* Take the request of a plain Spawn apart. Returns 0 for every message that asks for more than a
 * plain program, or that is malformed. */
static int parse(const struct quick_starts *quick, struct packed_spawn *fields,
                 struct limit *limits, int32_t *fds, struct spawn_request *request)
{
    const struct quick_program *received = &quick->received;
    const char *payload = received->datagram + HEADER_BYTES;
    int64_t size = received->datagram_bytes - HEADER_BYTES;
    if (size < (int64_t)sizeof *fields || received->datagram[0] != FORM_INLINE ||
        received->datagram[1] != received->n_fds)
        return 0;
    memcpy(fields, payload, sizeof *fields);
    if (fields->kind != KIND_SPAWN || fields->flags != 0 || fields->n_groups != -1 ||
        fields->uid != UINT32_MAX || fields->gid != UINT32_MAX || fields->memory_bytes != 0 ||
        fields->n_stdio < 3 || fields->n_stdio > MAX_FDS ||
        quick->n_limits + fields->n_limits > MAX_LIMITS)
        return 0;
    int64_t limits_at = sizeof *fields;
    int64_t stdio_at = limits_at + fields->n_limits * (int64_t)sizeof(struct packed_limit);
    int64_t marker_at = stdio_at + fields->n_stdio * (int64_t)sizeof(int32_t);
    int64_t program_at = marker_at + fields->marker_bytes;
    if (program_at + fields->program_bytes != size)
        return 0;
    memcpy(limits, quick->limits, (size_t)quick->n_limits * sizeof *limits);
    for (int i = 0; i < fields->n_limits; i++) {
        struct packed_limit limit;
        memcpy(&limit, payload + limits_at + i * (int64_t)sizeof limit, sizeof limit);
        limits[quick->n_limits + i] = (struct limit){limit.resource, 0, limit.soft, limit.hard};
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
    *request = (struct spawn_request){
        .size = sizeof *request,
        .flags = FLAG_IS_PREPARED | (uint32_t)quick->spawn_flags,
        .block = payload + program_at,
        .block_bytes = fields->program_bytes,
        .fds = fds,
        .limits = limits,
        .n_fds = fields->n_stdio,
        .n_limits = quick->n_limits + fields->n_limits,
        .n_groups = -1,
        .uid = (uid_t)-1,
        .gid = (gid_t)-1,
        .nice = quick->nice,
        .oom_score_fd = quick->oom_score_fd,
        .oom_score = quick->oom_score,
    };
    return 1;
}

/* As Supervisor.arm_for_spawn, with the figures of ForkBombs.brake_figures, and for the lowest
 * limit in flight. Returns 0 if that is impossible. */
static int arm_brake(struct quick_starts *quick, uint64_t limit)
{
    if (limit > INT32_MAX)
        return 0;
    if (limit != 0 && (quick->least_limit == 0 || (int64_t)limit < quick->least_limit))
        quick->least_limit = (int64_t)limit;
    if (!quick->may_arm || quick->least_limit == 0)
        return 1;
    int64_t count = execd_brake_count(quick->loadavg);
    if (count < 0)
        return 0;
    /* What programs in flight have started does not raise the limit. (Natively their pids are
     * consecutive, or the call ends.) */
    if (in_gvisor(quick) && quick->armed_limit != 0 && count > quick->armed_from + 1)
        count = quick->armed_from + 1;
    int64_t room = quick->brake_base + quick->least_limit;
    quick->armed_from = count;
    quick->armed_limit = count + (room > 0 ? room : 0) + quick->brake_spare;
    execd_brake_arm(quick->armed_from, quick->armed_limit, 0);
    return 1;
}

static void release_brake(struct quick_starts *quick)
{
    if (quick->armed_limit != 0)
        execd_brake_arm(0, 0, 0);
    quick->armed_limit = quick->least_limit = 0;
}

/* Start the received program. Returns 0 if nothing has started: then the caller starts the program,
 * in every detail and with every explanation. */
static int start(struct quick_starts *quick)
{
    struct packed_spawn fields;
    struct limit limits[MAX_LIMITS];
    int32_t fds[MAX_FDS];
    struct spawn_request request;
    struct spawn_result result;
    struct quick_program *received = &quick->received;
    if (!parse(quick, &fields, limits, fds, &request))
        return 0;
    if (in_gvisor(quick) && quick->n_programs == 0) {
        if (!execd_note_children(quick->children, &known_children))
            return 0;
        quick->noted_at = now();
    }
    if (!arm_brake(quick, fields.processes))
        return 0;
    memset(&result, 0, sizeof result);
    received->begun_at = now();
    pid_t pid = -1;
    if (!execd_watch_begin(quick->watch, received->begun_at))
        pid = execd_spawn(&request, &result);
    quick->watch->begun_at = 0;
    if (pid < 0 || result.failure.step != 0 || quick->watch->killed_pid == pid) {
        if (quick->n_programs == 0)
            release_brake(quick);
        return 0;
    }
    received->spawned_at = now();
    received->pid = pid;
    received->look_at = INT64_MAX;
    if (quick->look_pause != 0)
        received->look_at = received->spawned_at + quick->look_pause;
    received->is_direct = result.was_direct;
    quick->programs[quick->n_programs++] = *received;
    received->datagram_bytes = 0;
    return 1;
}

/* Report the end to the daemon. Returns 0 if the caller has to: the daemon takes no message at
 * present, or the program was larger than the warden has ever been (own_peak.py). */
static int report(const struct quick_starts *quick, const struct quick_program *program)
{
    struct packed_spawn fields;
    struct {
        uint8_t form, n_fds;
        struct packed_exited exited;
    } __attribute__((packed)) datagram;
    const struct early_end *end = &program->end;
    if (end->max_rss_kib > quick->known_peak_kib)
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
    return send(quick->channel, &datagram, sizeof datagram, MSG_NOSIGNAL | MSG_DONTWAIT) ==
           (ssize_t)sizeof datagram;
}

/* Whether the programs in flight, ended or not, have started nothing: natively nothing at all, in
 * gVisor nothing that is left of the ended ones. */
static int has_nothing_new(struct quick_starts *quick)
{
    int64_t last_pid = quick->programs[quick->n_programs - 1].pid;
    if (in_gvisor(quick)) {
        int64_t in_flight[MAX_IN_FLIGHT], time = now();
        for (int i = 0; i < quick->n_programs; i++)
            in_flight[i] = quick->programs[i].pid;
        /* An id of a known thread that has ended may be given out again, but not so soon. */
        if (time - quick->noted_at > SOON_IN_GVISOR ||
            !execd_has_no_new_child(quick->children, &known_children, in_flight,
                                    quick->n_programs))
            return 0;
        quick->noted_at = time;
        return 1;
    }
    if (quick->counted_pid > last_pid) {
        /* The last program has ended before and is reaped. Its number is free, but the kernel does
         * not come back to the number so soon. (Past the largest pid the kernel begins again with
         * small pids: then nothing is proved any more in this call.) */
        if (now() - quick->programs[0].spawned_at > SOON)
            return 0;
        last_pid = quick->counted_pid;
    }
    if (execd_newest_pid(quick->loadavg) != last_pid)
        return 0;
    quick->counted_pid = last_pid;
    return 1;
}

/* Reap the programs that have ended, and report their ends. Returns 0 if the caller has to go on: a
 * program has left something, or an end is not reported. */
static int reap(struct quick_starts *quick)
{
    int ended[MAX_IN_FLIGHT], n_ended = 0, n_left = 0, is_done = 1;
    for (int i = 0; i < quick->n_programs; i++)
        n_ended += ended[i] = execd_has_ended((pid_t)quick->programs[i].pid);
    if (n_ended == 0)
        return 1;
    if (!has_nothing_new(quick))
        return 0;
    for (int i = 0; i < quick->n_programs; i++) {
        struct quick_program *program = &quick->programs[i];
        struct rusage usage;
        if (ended[i] && wait4((pid_t)program->pid, &program->end.wait_status, WNOHANG, &usage) ==
                            (pid_t)program->pid) {
            program->has_ended = 1;
            execd_note_usage(&program->end, &usage);
            quick->n_forgotten++;
            /* First the pipes, then the report: see Warden._spawn. */
            while (program->n_fds > 0)
                (void)close(program->fds[--program->n_fds]);
            if (report(quick, program))
                continue;
            is_done = 0;
        }
        quick->programs[n_left++] = *program;
    }
    quick->n_programs = n_left;
    if (n_left == 0)
        release_brake(quick);
    return is_done;
}

static int is_in_flight(const struct quick_starts *quick, pid_t pid)
{
    for (int i = 0; i < quick->n_programs; i++)
        if (quick->programs[i].pid == pid)
            return 1;
    return 0;
}

/* Give back the programs that wait, and those that have been in flight for too long. Returns when
 * the next of them may be due; 0: some are given back. A program waits if it has not computed
 * between two looks. */
static int64_t give_back(struct quick_starts *quick, int64_t time)
{
    int64_t next = INT64_MAX;
    int are_given_back = 0;
    for (int i = 0; i < quick->n_programs; i++) {
        struct quick_program *program = &quick->programs[i];
        int64_t end = program->spawned_at + quick->patience;
        if (program->look_at <= time) {
            int64_t before = program->cpu_time;
            program->cpu_time = cpu_time(program->pid);
            program->is_given_back = program->cpu_time <= before;
            program->look_at = time + quick->look_pause;
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
static void forget_given_back(struct quick_starts *quick)
{
    int n_left = 0;
    for (int i = 0; i < quick->n_programs; i++) {
        struct quick_program *program = &quick->programs[i];
        if (!program->is_given_back)
            quick->programs[n_left++] = *program;
        else if (!execd_add_child(&known_children, program->pid))
            quick->noted_at = -SOON_IN_GVISOR; /* there is no proof with half a list */
    }
    quick->n_programs = n_left;
}

/* Read the signal, if one has come, and reap. First the signal is taken, and then the questions are
 * asked: one signal is for all children that have ended or stopped meanwhile (signal(7)). Returns
 * why the call ends; 0: the call goes on. */
static int take_ends(struct quick_starts *quick, int is_signalled)
{
    struct signalfd_siginfo taken;
    if (is_signalled)
        (void)!read(quick->signals, &taken, sizeof taken);
    quick->has_more = 1;
    if (!reap(quick))
        return CALLER_TAKES_ALL;
    /* Beside programs in flight another child may have ended, or a program may have stopped, with
     * the caller as its tracer. Natively the caller looks soon enough, and the programs are too
     * young to become jobs for that. */
    if (quick->n_programs == 0 || in_gvisor(quick)) {
        pid_t pid = execd_ended_child();
        quick->has_more = pid != 0;
        if (pid != 0 && !is_in_flight(quick, pid)) {
            quick->stranger = pid;
            return STRANGER_HAS_ENDED;
        }
    }
    return 0;
}

/* See execd_start_quickly. Returns why the call ends. */
static int serve(struct quick_starts *quick)
{
    int64_t last_pid = 0;
    int is_over = 0, may_have_ended = quick->goes_on && quick->has_more;
    while (!is_over && !execd_brake_may_have_fired()) {
        int64_t time = now();
        /* A program that has ended waits too, and then there is a signal to read. */
        int64_t end = give_back(quick, time);
        if (quick->until < end && (in_gvisor(quick) || quick->n_programs == 0))
            end = quick->until;
        /* User code can send SIGCHLD without end, and the daemon requests. */
        is_over = end <= time || (!quick->may_start && quick->n_programs == 0);
        int64_t rest = is_over || may_have_ended ? 0 : end - time;
        struct timespec timeout = {.tv_sec = (time_t)(rest / 1000000000),
                                   .tv_nsec = (long)(rest % 1000000000)};
        int has_room = quick->may_start && quick->n_programs < MAX_IN_FLIGHT &&
                       time < quick->until;
        struct pollfd fds[] = {{.fd = quick->signals, .events = POLLIN},
                               {.fd = has_room ? quick->channel : -1, .events = POLLIN}};
        int n_ready = ppoll(fds, 2, &timeout, NULL);
        if (n_ready < 0)
            return CALLER_TAKES_ALL;
        if (fds[0].revents != 0 || may_have_ended) {
            if (quick->n_programs == 0)
                return CALLER_TAKES_ALL;
            int why = take_ends(quick, fds[0].revents != 0);
            if (why != 0)
                return in_gvisor(quick) ? why : CALLER_TAKES_ALL;
            may_have_ended = 0;
        }
        if (fds[1].revents != 0) {
            if (!receive(quick) || !start(quick))
                return CALLER_TAKES_ALL;
            int64_t pid = quick->programs[quick->n_programs - 1].pid;
            if (!in_gvisor(quick) && quick->n_programs > 1 && pid != last_pid + 1)
                return CALLER_TAKES_ALL;
            last_pid = pid;
        }
    }
    if (!is_over || !in_gvisor(quick))
        return CALLER_TAKES_ALL;
    for (int i = 0; i < quick->n_programs; i++)
        if (quick->programs[i].is_given_back)
            return PROGRAMS_WAIT;
    return TIME_IS_OVER;
}

/* Start the programs that come, and reap those that end at once, until anything else is to be done,
 * until `quick->until`, or until a program waits or has been in flight for too long. The caller
 * then takes over all that is left in `quick`, or what is given back, and lets the call go on. */
void execd_start_quickly(struct quick_starts *quick)
{
    quick->n_received = 0;
    quick->n_forgotten = quick->counted_pid = 0;
    quick->stranger = 0;
    quick->received.datagram_bytes = 0;
    if (!quick->goes_on) {
        quick->n_programs = quick->has_more = 0;
        quick->armed_limit = quick->least_limit = 0;
    }
    forget_given_back(quick);
    quick->end_of_call = serve(quick);
}

/* quick_starts.py declares the same structure. */
size_t execd_quick_starts_bytes(void)
{
    return sizeof(struct quick_starts);
}
