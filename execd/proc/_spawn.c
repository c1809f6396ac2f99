/*
 * The two ways in which execd starts a program.
 *
 *   execd_spawn  runs in the warden and starts user code. vfork: the child borrows the warden's
 *                memory until the exec, so nothing is copied, and a limit set here is in force
 *                before the program's first instruction. A single exec is the whole cost; a wrapper
 *                such as prlimit(1) would need a second exec: 5-20 ms under gVisor.
 *   execd_clone  runs in the daemon and starts the warden, as the init of a PID namespace where the
 *                kernel allows. A plain clone (copy on write), once per warden: a child with memory
 *                of its own may wait for its id maps, written by the parent; a vfork child cannot.
 *
 * Rules of both children:
 *   - Only system calls that are safe after fork in a threaded process; no allocation, no stdio, no
 *     locks.
 *   - Steps run in the order of the functions below. The first failed step is reported by number
 *     and errno and ends the child with _exit. STEP_NAMES in spawn.py lists the same steps.
 *   - Neither function waits for the child, failed or not: only a reaper waits, and waitpid here
 *     would race with the reaper.
 *
 * The file includes nothing of Python: spawn.py loads the library with ctypes, and ctypes releases
 * the GIL around each call. Structures are declared here or in _spawn.h, and in spawn.py; `size`
 * guards against a difference between the two.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>

#include "_spawn.h"

/* A program in the place of a shell that would do nothing but start the program. */
struct direct_program {
    char **paths; /* where the shell looks, in this order; NULL-terminated */
    char **argv;
    char **envp;
    char **pwd; /* the place in envp of the entry "PWD"; or NULL */
    char **underscore; /* the place in envp of the entry "_"; or NULL */
    char **underscores; /* for each path the entry "_=path"; or NULL */
    int was_started; /* written by the child: the exec took place */
};

/* The strings of a block. */
struct program {
    const char *cwd;
    char **paths; /* tried in order, as execvp does; NULL-terminated, never empty */
    char **argv;
    char **envp;
    struct direct_program direct; /* tried before argv; without argv: nothing is */
};

#define PWD_BYTES 4096 /* PATH_MAX, the longest path that getcwd(2) returns */
#define N_SIGNALS 64

#ifndef SYS_close_range
#define SYS_close_range 436
#endif

/* Close all descriptors from `first` on. close_range(2) exists since Linux 5.9 and in gVisor, where
 * an end of ~0U is EINVAL. */
static int close_from(unsigned first)
{
    return (int)syscall(SYS_close_range, first, (unsigned)INT32_MAX, 0);
}

/* Exec resets handlers to the default action but passes on "ignored". Raw system calls, because the
 * C library refuses to change the two signals of its own, perhaps ignored by the parent of execd.
 * KILL and STOP cannot be changed. */
static int default_signals(void)
{
    /* The kernel's struct sigaction, all zero: SIG_DFL, no flags, an empty mask. */
    static const char default_action[64];
    for (int number = 1; number <= N_SIGNALS; number++)
        if (number != SIGKILL && number != SIGSTOP)
            if (syscall(SYS_rt_sigaction, number, default_action, NULL, N_SIGNALS / 8) != 0)
                return -1;
    return 0;
}

static int unblock_signals(void)
{
    sigset_t none;
    sigemptyset(&none);
    return sigprocmask(SIG_SETMASK, &none, NULL);
}

/* Put the given descriptors at 0, 1, 2, ... A source with the number of a target goes above the
 * targets first. */
static int place_descriptors(const int32_t *fds, int n)
{
    int sources[MAX_FDS];
    for (int i = 0; i < n; i++) {
        int has_number_of_target = fds[i] >= 0 && fds[i] < n;
        sources[i] = has_number_of_target ? fcntl(fds[i], F_DUPFD, n) : fds[i];
        if (has_number_of_target && sources[i] < 0)
            return -1;
    }
    for (int i = 0; i < n; i++)
        if (fds[i] != KEEP_FD && dup2(sources[i], i) < 0)
            return -1;
    return close_from((unsigned)n);
}

/* Raw system calls: setuid and its kin of glibc signal every thread of the process, and the child
 * borrows the memory of that process. */
static int become_user(const struct spawn_request *request)
{
    gid_t gid = request->gid;
    uid_t uid = request->uid;
    if (request->n_groups >= 0 &&
        syscall(SYS_setgroups, (size_t)request->n_groups, request->groups) != 0)
        return -1;
    if (gid != (gid_t)-1 && syscall(SYS_setresgid, gid, gid, gid) != 0)
        return -1;
    if (uid != (uid_t)-1 && syscall(SYS_setresuid, uid, uid, uid) != 0)
        return -1;
    return 0;
}

static int exec_first(const struct program *program)
{
    int seen = ENOENT;
    for (char **path = program->paths; *path; path++) {
        execve(*path, program->argv, program->envp);
        if (errno == EACCES)
            seen = EACCES; /* go on: a later directory may hold an executable file */
        else if (errno != ENOENT && errno != ENOTDIR)
            return -1;
    }
    errno = seen;
    return -1;
}

/* Become the program that the shell would find, or return with nothing done: then the shell starts
 * the program, or fails in the shell's own words. A shell and execve(2) differ in what they do
 * about a file that is no program (a directory, a script without #!, a missing interpreter), so any
 * doubt returns. */
static void exec_direct(struct direct_program *direct)
{
    char pwd[sizeof "PWD=" - 1 + PWD_BYTES] = "PWD=";
    if (direct->pwd) {
        char *path = pwd + strlen("PWD=");
        /* Not an absolute path: the directory is not below the root directory. */
        if (syscall(SYS_getcwd, path, PWD_BYTES) < 0 || path[0] != '/')
            return;
        *direct->pwd = pwd;
    }
    for (int i = 0; direct->paths[i]; i++) {
        struct stat found;
        if (stat(direct->paths[i], &found) != 0) {
            if (errno == ENOENT || errno == ENOTDIR)
                continue;
            return;
        }
        if (!S_ISREG(found.st_mode))
            return;
        if (direct->underscore)
            *direct->underscore = direct->underscores[i];
        direct->was_started = 1;
        execve(direct->paths[i], direct->argv, direct->envp);
        direct->was_started = 0;
        return;
    }
}

/* Take `count` strings, and let `list` end in NULL. Returns where the next list begins, or NULL if
 * there are fewer strings. */
static char **take(char **list, uint32_t count, const char **next, const char *end)
{
    for (uint32_t i = 0; i < count; i++) {
        if (*next == end)
            return NULL;
        list[i] = (char *)*next;
        *next += strlen(*next) + 1;
    }
    list[count] = NULL;
    return list + count + 1;
}

/* Point into the block. Returns an array that belongs to the caller, or NULL with errno: EINVAL for
 * a block that pack() of program_block.py does not make. */
static char **parse_block(const char *block, uint64_t size, struct program *program)
{
    uint32_t counts[6];
    enum { PATHS, ARGV, ENV, DIRECT_PATHS, DIRECT_ARGV, DIRECT_ENV };
    memset(program, 0, sizeof *program);
    errno = EINVAL;
    if (size <= sizeof counts || block[size - 1] != '\0')
        return NULL;
    memcpy(counts, block, sizeof counts);
    uint64_t n_pointers = (uint64_t)counts[DIRECT_PATHS] + 1; /* of the entries "_=path" */
    for (int i = 0; i < 6; i++)
        n_pointers += (uint64_t)counts[i] + 1;
    /* Each string takes a byte at least, so the sum is no overflow and calloc gets no nonsense. */
    if (n_pointers > 2 * size)
        return NULL;
    if (!counts[PATHS] || !counts[ARGV] || !counts[DIRECT_ARGV] != !counts[DIRECT_PATHS])
        return NULL;
    char **pointers = calloc(n_pointers, sizeof *pointers);
    if (!pointers)
        return NULL;
    const char *next = block + sizeof counts, *end = block + size;
    struct direct_program *direct = &program->direct;
    char **list = pointers;
    char ***lists[6] = {&program->paths, &program->argv, &program->envp,
                        &direct->paths, &direct->argv, &direct->envp};
    program->cwd = next;
    next += strlen(next) + 1;
    for (int i = 0; i < 6 && list; i++) {
        *lists[i] = list;
        list = take(list, counts[i], &next, end);
    }
    for (uint32_t i = 0; list && i < counts[DIRECT_ENV]; i++) {
        if (strcmp(direct->envp[i], "PWD") == 0)
            direct->pwd = &direct->envp[i];
        else if (strcmp(direct->envp[i], "_") == 0)
            direct->underscore = &direct->envp[i];
    }
    if (list && direct->underscore) {
        direct->underscores = list;
        list = take(list, counts[DIRECT_PATHS], &next, end);
    }
    if (!list || next != end) {
        free(pointers);
        errno = EINVAL;
        return NULL;
    }
    return pointers;
}

#define TRY(step_, call)                                 \
    do {                                                 \
        if ((call) < 0) {                                \
            *failure = (struct failure){(step_), errno}; \
            return;                                      \
        }                                                \
    } while (0)

static void become_command(const struct spawn_request *request, struct program *program,
                           struct failure *failure)
{
    TRY(STEP_SESSION, request->flags & FLAG_GROUP_ONLY ? setpgid(0, 0) : setsid());
    TRY(STEP_DESCRIPTORS, place_descriptors(request->fds, request->n_fds));
    if (request->flags & FLAG_CONTROLLING_TERMINAL)
        TRY(STEP_TERMINAL, ioctl(0, TIOCSCTTY, 0));
    for (int i = 0; i < request->n_limits; i++) {
        const struct limit *limit = &request->limits[i];
        struct rlimit value = {.rlim_cur = limit->soft, .rlim_max = limit->hard};
        TRY(STEP_LIMITS, setrlimit((__rlimit_resource_t)limit->resource, &value));
    }
    /* EACCES: the caller's own value is higher. User code of the caller's user may raise the value
     * (setpriority(2)), also of the init of a PID namespace, and nobody may lower it again. */
    if (request->nice && setpriority(PRIO_PROCESS, 0, request->nice) != 0 && errno != EACCES)
        TRY(STEP_LIMITS, -1);
    TRY(STEP_USER, become_user(request));
    /* After the user: the new user must have the right to enter the directory. */
    TRY(STEP_CWD, chdir(program->cwd));
    TRY(STEP_SIGNALS, unblock_signals());
    if (program->direct.paths[0])
        exec_direct(&program->direct);
    TRY(STEP_EXEC, exec_first(program));
}

/* A function of its own, and not inlined: the child runs on the same stack, so the compiler must
 * keep none of the parent's variables in registers that the child changes. */
static __attribute__((noinline)) pid_t vfork_command(const struct spawn_request *request,
                                                     struct program *program,
                                                     volatile struct failure *failure)
{
    pid_t pid = vfork();
    if (pid == 0) {
        struct failure mine = {STEP_NONE, 0};
        become_command(request, program, &mine);
        failure->step = mine.step;
        failure->error = mine.error;
        _exit(127);
    }
    return pid;
}

enum { OOM_FIRST_CHOICE = 1000 };

/* Set the OOM score of this process and of later children: proc_pid_oom_score_adj(5). Raising the
 * score is always allowed. So is a return to a value that is not below the last value of a
 * privileged process, and execd's own value never is. */
static void set_oom_score(int fd, int value)
{
    char text[16];
    (void)!pwrite(fd, text, (size_t)snprintf(text, sizeof text, "%d", value), 0);
}

/* Returns the child's pid, or -1. result->failure.step is STEP_NONE if the program runs. A child
 * with a failure is left to the reaper. */
pid_t execd_spawn(const struct spawn_request *request, struct spawn_result *result)
{
    memset(result, 0, sizeof *result);
    struct program program;
    char **pointers = NULL;
    errno = EINVAL;
    if (request->size == sizeof *request && request->n_fds >= 3 && request->n_fds <= MAX_FDS)
        pointers = parse_block(request->block, request->block_bytes, &program);
    if (!pointers) {
        result->failure = (struct failure){STEP_REQUEST, errno};
        return -1;
    }
    /* The parent writes the score. The child shares the memory of an undumpable process, so the
     * kernel closes the child's own file to the child. After the exec would be too late: the
     * program's first children would keep the old score. */
    if (request->oom_score_fd >= 0)
        set_oom_score(request->oom_score_fd, OOM_FIRST_CHOICE);
    pid_t pid = vfork_command(request, &program, &result->failure);
    int error = errno;
    if (request->oom_score_fd >= 0)
        set_oom_score(request->oom_score_fd, request->oom_score);
    if (pid < 0)
        result->failure = (struct failure){STEP_FORK, error};
    result->was_direct = program.direct.was_started && result->failure.step == STEP_NONE;
    free(pointers);
    return pid;
}

struct clone_request {
    uint32_t size;
    uint32_t unshare_mounts; /* a mount namespace, a fresh /proc, and the covers */
    uint64_t clone_flags;    /* CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWIPC, or none */
    const char *path;
    char *const *argv;
    char *const *envp;
    const char *const *mounts;           /* triples: file system, place, options */
    const char *const *pinned;           /* directories that nobody may rename any more */
    const char *const *read_only;        /* directories that nobody may write any more */
    const char *const *covers;           /* directories to hide under an empty, read-only tmpfs */
    const char *const *cover_dirs;       /* then made inside the covers */
    const char *const *cover_links;      /* pairs: link, target */
    int32_t socket;                      /* becomes descriptor 3, the only one besides 0-2 */
    int32_t go, go_end;                  /* a pipe: the child waits for a byte */
    int32_t report;                      /* takes a struct failure, and is closed by the exec */
};

enum {
    COVER_FLAGS = MS_NOSUID | MS_NODEV | MS_NOEXEC,
    READ_ONLY_COVER_FLAGS = COVER_FLAGS | MS_REMOUNT | MS_RDONLY,
    CAPABILITY_SYS_CHROOT = 18,
};

/* Bind a directory read-only over itself. In a user namespace a remount must keep the flags that the
 * mount has (mount_namespaces(7)); statvfs(3) and mount(2) have the same numbers but for one. */
static int make_read_only(const char *directory)
{
    enum { SAME = MS_NOSUID | MS_NODEV | MS_NOEXEC | MS_NOATIME | MS_NODIRATIME };
    struct statvfs found;
    if (statvfs(directory, &found) != 0)
        return -1;
    if (found.f_flag & ST_RDONLY)
        return 0;
    unsigned long kept = (found.f_flag & SAME) | (found.f_flag & ST_RELATIME ? MS_RELATIME : 0);
    if (mount(directory, directory, NULL, MS_BIND | MS_REC, NULL) != 0)
        return -1;
    return mount("none", directory, NULL, MS_BIND | MS_REMOUNT | MS_RDONLY | kept, NULL);
}

/* The whole life of the probe's child. Exit code 0: the child has made the cover writable. */
static int make_writable(void *cover)
{
    int undone = unshare(CLONE_NEWNS) == 0 &&
                 mount("none", cover, NULL, COVER_FLAGS | MS_REMOUNT, NULL) == 0;
    _exit(undone ? 0 : 1);
}

/* Whether code in a user and mount namespace of its own can change a mount of ours: 1, 0, or -1
 * with errno. Linux locks inherited mounts (mount_namespaces(7)). gVisor 20240729 does not: there a
 * remount makes the cover writable for everybody, and an overlay over a parent directory shows what
 * the cover hides. The child borrows our memory: copying costs 20 ms in gVisor. */
static int mounts_can_be_changed(const char *cover)
{
    static char stack[16384] __attribute__((aligned(16)));
    const int flags = CLONE_VM | CLONE_VFORK | CLONE_NEWUSER | SIGCHLD;
    pid_t pid = clone(make_writable, stack + sizeof stack, flags, (void *)cover);
    if (pid < 0)
        return errno == EAGAIN || errno == ENOMEM ? -1 : 0; /* refused: to user code as well */
    int status;
    while (waitpid(pid, &status, 0) < 0)
        if (errno != EINTR)
            return -1;
    return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

/* Take user namespaces from user code, and with them every mount: the kernel refuses a user
 * namespace to a process whose root directory is not the root of its mount namespace
 * (user_namespaces(7); gVisor too). The new root is the same tree with the same covers, bound once
 * more; /proc only serves as the place to attach the copy. CAP_SYS_CHROOT, with which root leaves
 * such a root, goes for good. */
static int change_root(void)
{
    if (mount("/", "/proc", NULL, MS_BIND | MS_REC, NULL) != 0 || chroot("/proc") != 0 ||
        chdir("/") != 0)
        return -1;
    return prctl(PR_CAPBSET_DROP, CAPABILITY_SYS_CHROOT, 0, 0, 0);
}

/* `report`: the pipe on which the caller reports a failure. The descriptor moves to 4, right above
 * the descriptors that stay. */
static void become_warden(const struct clone_request *request, int *report, struct failure *failure)
{
    TRY(STEP_SESSION, setsid());
    if (request->unshare_mounts) {
        /* Not in the clone itself: with all three namespaces at once gVisor refuses the mounts. */
        TRY(STEP_MOUNT_NAMESPACE, unshare(CLONE_NEWNS));
        TRY(STEP_MOUNT_NAMESPACE, mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL));
        TRY(STEP_MOUNT_PROC, mount("proc", "/proc", "proc", COVER_FLAGS, NULL));
        /* With the namespace go the files of shm_open(3) and mq_open(3). */
        for (const char *const *own = request->mounts; *own; own += 3)
            TRY(STEP_MOUNT_IPC, mount(own[0], own[1], own[0], COVER_FLAGS, own[2]));
        /* rename(2) and rmdir(2) refuse a mount point: EBUSY. */
        for (const char *const *directory = request->pinned; *directory; directory++)
            TRY(STEP_PIN, mount(*directory, *directory, NULL, MS_BIND | MS_REC, NULL));
        for (const char *const *directory = request->read_only; *directory; directory++)
            TRY(STEP_READ_ONLY, make_read_only(*directory));
        for (const char *const *cover = request->covers; *cover; cover++)
            TRY(STEP_COVER, mount("tmpfs", *cover, "tmpfs", COVER_FLAGS, "mode=0755,size=64k"));
        for (const char *const *dir = request->cover_dirs; *dir; dir++)
            TRY(STEP_COVER_CONTENT, mkdir(*dir, 0755));
        for (const char *const *link = request->cover_links; *link; link += 2)
            TRY(STEP_COVER_CONTENT, symlink(link[1], link[0]));
        for (const char *const *cover = request->covers; *cover; cover++)
            TRY(STEP_COVER, mount("none", *cover, NULL, READ_ONLY_COVER_FLAGS, NULL));
        /* A second cover hides a part of /proc, which a new gVisor shows again in a /proc that
         * user code mounts in a user namespace. Linux refuses such a mount. */
        int unlocked = 0;
        if (*request->covers)
            unlocked = request->covers[1] ? 1 : mounts_can_be_changed(*request->covers);
        TRY(STEP_PROBE, unlocked);
        if (unlocked) {
            TRY(STEP_COVER, mount("none", *request->covers, NULL, READ_ONLY_COVER_FLAGS, NULL));
            TRY(STEP_ROOT, change_root());
        }
    }
    int null = open("/dev/null", O_RDWR | O_CLOEXEC);
    TRY(STEP_DESCRIPTORS, null);
    const int32_t fds[] = {null, null, 2, request->socket, *report};
    TRY(STEP_DESCRIPTORS, place_descriptors(fds, 5));
    *report = 4;
    TRY(STEP_DESCRIPTORS, fcntl(*report, F_SETFD, FD_CLOEXEC));
    TRY(STEP_SIGNALS, default_signals());
    TRY(STEP_SIGNALS, unblock_signals());
    TRY(STEP_EXEC, execve(request->path, request->argv, request->envp));
}

/* Returns the child's pid, or -1 with errno. The child is the caller's copy until it reads a byte from
 * `go`: the caller writes the id maps meanwhile. A caller that fails or dies ends the child. */
pid_t execd_clone(const struct clone_request *request)
{
    errno = EINVAL;
    if (request->size != sizeof *request)
        return -1;
    sigset_t all, old;
    sigfillset(&all);
    sigprocmask(SIG_SETMASK, &all, &old);
    pid_t pid = (pid_t)syscall(SYS_clone, request->clone_flags | SIGCHLD, NULL, NULL, NULL, NULL);
    if (pid == 0) {
        char byte;
        close(request->go_end);
        if (read(request->go, &byte, 1) == 1) {
            struct failure mine = {STEP_NONE, 0};
            int report = request->report;
            become_warden(request, &report, &mine);
            (void)!write(report, &mine, sizeof mine);
        }
        _exit(127);
    }
    int error = errno;
    sigprocmask(SIG_SETMASK, &old, NULL);
    errno = error;
    return pid;
}

/* Numbers of system calls that spawn.py makes for a single thread. */
const long execd_syscalls[] = {SYS_setgroups, SYS_setresgid, SYS_setresuid, SYS_sched_setattr};

/* Give the caller an orphan of process group `group` as a child, which ends at once: see
 * warden/hangups.py. Returns the pid, for the caller to kill and to reap, or -1 with errno. The
 * caller is prepared (execd_spawn), so no handler can run in the child with the caller's memory.
 *
 * The orphan's parent borrows the caller's memory (vfork), and ends at once. The orphan is a copy,
 * so its parent need not wait for a child that user code may stop. `orphan` is written by the
 * kernel before the parent goes on, so the caller knows the pid even if user code kills the
 * parent. */
pid_t execd_add_orphan(pid_t group)
{
    pid_t orphan = 0;
    volatile int error = ECHILD; /* user code killed the parent */
    pid_t parent = vfork();
    if (parent == 0) {
        /* A raw call: glibc's fork runs handlers that are made for another thread. */
        if (setpgid(0, group) != 0 ||
            syscall(SYS_clone, SIGCHLD | CLONE_PARENT_SETTID, NULL, &orphan, NULL, NULL) < 0)
            error = errno;
        _exit(0); /* the parent, and the orphan too */
    }
    if (parent < 0)
        error = errno;
    else
        while (waitpid(parent, NULL, 0) < 0 && errno == EINTR)
            ;
    errno = error;
    return orphan > 0 ? orphan : -1;
}
