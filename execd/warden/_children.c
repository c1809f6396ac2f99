/*
 * In gVisor, the proof that programs have left nothing: no process is new among the warden's
 * children. (Natively the newest pid is the proof: _starts.c. gVisor does not tell the newest
 * pid.)
 *
 * When a process ends, gVisor gives the children of the process to the init of the PID namespace,
 * or to the subreaper, before anybody can wait for the process. Either is the warden. So as long as
 * any descendant of an ended program lives, or is a zombie, some descendant is the warden's child.
 * A child with CLONE_PARENT is the warden's child from the start.
 *
 * /proc/PID/task/TID/children (proc_tid_children(5)) tells the children of the warden's main
 * thread, which makes all children and gets all orphans. gVisor lists a snapshot. (Linux may omit
 * some children while others end, so there the file would be no proof.) Dead children are in the
 * list until the warden reaps them. So are the threads of children, and a thread leaves the list
 * when the thread ends: the number of entries proves nothing, and ids are compared.
 *
 * A new process could only pass for an old thread after all other pids have been given out. So a
 * list of known children is no proof for long (SOON_IN_GVISOR of _starts.c). The list is
 * noted before the oldest program in flight begins, and anew at each proof.
 */
#define _GNU_SOURCE
#include <stdlib.h>
#include <unistd.h>

#include "_children.h"

enum { ID_BYTES = 11 }; /* ten digits and a space */

/* Note the children while no program is in flight. `fd`: an open children file of the main thread.
 * Returns 0 if the children are unknown, or too many; then `found` has no meaning. */
int execd_note_children(int fd, struct children *found)
{
    static char text[MAX_CHILDREN * ID_BYTES + 1];
    ssize_t n = pread(fd, text, sizeof text - 1, 0);
    if (n < 0 || n == sizeof text - 1)
        return 0;
    text[n] = '\0';
    found->count = 0;
    for (char *next = text;;) {
        char *end;
        long id = strtol(next, &end, 10);
        if (end == next)
            return 1;
        if (found->count == MAX_CHILDREN)
            return 0;
        found->ids[found->count++] = (int32_t)id;
        next = end;
    }
}

/* Count a program that is no longer in flight among the known children. Returns 0 if the list is
 * full. */
int execd_add_child(struct children *known, int64_t pid)
{
    if (known->count == MAX_CHILDREN)
        return 0;
    known->ids[known->count++] = (int32_t)pid;
    return 1;
}

/* Whether the warden has no child but known children and the `n` programs in flight, which are
 * children all. The known children are then noted anew. */
int execd_has_no_new_child(int fd, struct children *known, const int64_t *in_flight, int n)
{
    struct children found;
    int n_in_flight = 0, n_known = 0;
    if (!execd_note_children(fd, &found))
        return 0;
    for (int i = 0, hint = 0; i < found.count; i++) {
        int32_t id = found.ids[i];
        int is_in_flight = 0, is_known = 0;
        for (int j = 0; j < n && !is_in_flight; j++)
            is_in_flight = in_flight[j] == id;
        /* Both lists have the same order, so the next known child is the first guess. */
        for (int j = 0; j < known->count && !is_in_flight && !is_known; j++) {
            is_known = known->ids[hint % known->count] == id;
            hint++;
        }
        if (!is_in_flight && !is_known)
            return 0;
        n_in_flight += is_in_flight;
        if (is_known)
            found.ids[n_known++] = id; /* n_known <= i */
    }
    if (n_in_flight != n)
        return 0;
    found.count = n_known;
    *known = found;
    return 1;
}
