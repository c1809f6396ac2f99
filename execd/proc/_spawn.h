/*
 * What _spawn.c shares with the warden's other C. The tests declare the same structures.
 */
#ifndef EXECD_SPAWN_H
#define EXECD_SPAWN_H

#include <stdint.h>
#include <sys/types.h>

enum step {
    STEP_NONE, STEP_REQUEST, STEP_FORK, STEP_SESSION, STEP_DESCRIPTORS, STEP_TERMINAL, STEP_LIMITS,
    STEP_USER, STEP_CWD, STEP_SIGNALS, STEP_EXEC, STEP_ID_MAP,
    STEP_MOUNT_NAMESPACE, STEP_MOUNT_PROC, STEP_PIN, STEP_READ_ONLY, STEP_COVER, STEP_COVER_CONTENT,
    STEP_PROBE, STEP_ROOT, STEP_MOUNT_IPC,
};

struct failure {
    int32_t step;
    int32_t error;
};

struct limit {
    int32_t resource;
    int32_t unused;
    uint64_t soft, hard;
};

struct spawn_request {
    uint32_t size;
    uint32_t flags;
    const char *block; /* the program: see program_block.py */
    uint64_t block_bytes;
    const int32_t *fds; /* the child's 0, 1, 2, ...; KEEP_FD: the caller's of that number */
    const struct limit *limits;
    const gid_t *groups;
    int32_t n_fds, n_limits, n_groups;
    uid_t uid; /* (uid_t)-1: keep */
    gid_t gid; /* (gid_t)-1: keep */
    int32_t nice; /* 0: keep */
    int32_t oom_score_fd; /* the caller's /proc/self/oom_score_adj; -1: keep */
    int32_t oom_score;    /* the caller's own value */
};

#define MAX_FDS 8

struct spawn_result {
    struct failure failure;
    int32_t was_direct;
};

enum { FLAG_CONTROLLING_TERMINAL = 1, FLAG_GROUP_ONLY = 2 };

enum { KEEP_FD = -1 };

/* The caller ignores and handles no signal, blocks all signals, and has no_new_privs (`prepare` in
 * spawn.py). A handler would run in the child, and change the caller's memory. The child would need
 * 65 more system calls, and each call waits for a turn of the CPU where a fork bomb keeps the
 * sandbox busy. */
pid_t execd_spawn(const struct spawn_request *request, struct spawn_result *result);

#endif
