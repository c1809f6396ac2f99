/*
 * What _children.c shares with _starts.c.
 */
#ifndef EXECD_CHILDREN_H
#define EXECD_CHILDREN_H

#include <stdint.h>

enum { MAX_CHILDREN = 1024 };

/* The warden's children at some moment, without the programs in flight. */
struct children {
    int32_t count;
    int32_t ids[MAX_CHILDREN];
};

int execd_note_children(int fd, struct children *found);
int execd_add_child(struct children *known, int64_t pid);
int execd_has_no_new_child(int fd, struct children *known, const int64_t *in_flight, int n);

#endif
