/*
 * What _early_end.c shares with _quick_starts.c. early_end.py declares the same structure.
 */
#ifndef EXECD_EARLY_END_H
#define EXECD_EARLY_END_H

#include <stdint.h>
#include <sys/resource.h>
#include <sys/types.h>

struct early_end {
    int32_t wait_status;
    int32_t has_more; /* a further child waits to be reaped, and has no SIGCHLD any more */
    int64_t max_rss_kib;
    double user_seconds, system_seconds;
};

/* _brake.c */
int64_t execd_newest_pid(int loadavg);

int execd_has_ended(pid_t pid);
pid_t execd_ended_child(void);
void execd_note_usage(struct early_end *end, const struct rusage *usage);

#endif
