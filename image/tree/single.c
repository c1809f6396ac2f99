/* The single file `execd`: this static program, then the tree as tar.zst, then a trailer (see pack).
 *
 *     execd [ARG...]       unpack the tree once, and become its bin/execd ARG... (default: serve)
 *     execd --unpack DIR   put the tree into the directory DIR, which is empty or made (an init
 *                          container's step: the image needs no shell, no tar and no cp)
 *
 * A start takes the first BASE that can hold the tree: EXECD_UNPACK_DIR alone if it is set, else the
 * folder of this file, /opt, /var/lib, /run, /var/tmp, /tmp, /dev/shm, HOME. The tree is
 * BASE/.execd-ID, ID being the beginning of the archive's SHA-256, and is there as a whole or not at
 * all: a start unpacks into BASE/.execd-part-XXXXXX and renames this folder. Races and faults:
 *
 *   two starts at once     Both unpack, one rename wins (rename(2) refuses a folder that is not
 *                          empty), and the loser takes the winner's tree.
 *   a killed start         Its part stays. Each start holds flock(2) on its part, and removes the
 *                          parts of this user that nobody holds (see make_part).
 *   a planted folder       A tree must be a folder of this user or of root that nobody else can
 *                          write, with such files bin/execd and .complete, and .complete has the id
 *                          of this archive. Else the next base. Files further inside are not looked
 *                          at: nobody else could put them there.
 *   a crash of the machine The mark .complete is made when all is on the disk; not in gVisor.
 *   a BASE of another user  Its owner could replace the tree: the next base.
 *   full disk, noexec, read-only, no directory: the next base; the reasons are printed if none is
 *                          left, with exit code 78 (sysexits.h: EX_CONFIG).
 *   a cut or changed file  The trailer's sizes, and zstd's checksum while unpacking.
 *
 * Code of the same user may still write to an unpacked tree: the warden binds the tree read-only for
 * the commands. In DIR of --unpack a file .part marks an unpacking that has not ended; the next call
 * begins again there. A DIR with anything else in it is refused. */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/utsname.h>
#include <unistd.h>
#include <zstd.h>

enum { NO_PLACE = 78, BLOCK = 512, REASONS_BYTES = 8192, BELOW_BYTES = 2 * PATH_MAX };
static const char PART[] = ".execd-part-";

static struct trailer {
  char magic[8];
  uint64_t offset, packed_bytes, unpacked_bytes;
  char id[16];
} trailer;
static const char *archive;
static char reasons[REASONS_BYTES];

static void give_reason(const char *place, const char *what, int error) {
  size_t used = strlen(reasons);
  snprintf(reasons + used, sizeof reasons - used, "\n  %s: %s%s%s", place, what,
           error ? ": " : "", error ? strerror(error) : "");
}

static int remove_entry(const char *path, const struct stat *info, int flag, struct FTW *walk) {
  (void)info, (void)flag, (void)walk;
  return remove(path);
}

static void remove_tree(const char *path) {
  int error = errno;
  nftw(path, remove_entry, 16, FTW_DEPTH | FTW_PHYS);
  errno = error;
}

/* Reading the archive: ustar (POSIX.1-1988), with files, directories and symbolic links, whose names
 * pack has checked. The bytes come in pieces of any size. */

struct sink {
  int directory, file;
  uint64_t content_left, padding_left;
  char header[BLOCK];
  size_t header_bytes;
};

static uint64_t octal(const char *field, size_t size) {
  char text[16] = {0};
  memcpy(text, field, size);
  return strtoull(text, 0, 8);
}

static int begin_entry(struct sink *sink) {
  const char *header = sink->header;
  char name[PATH_MAX], link[101];
  if (!header[0])
    return 0; /* the blocks of zeros at the end */
  snprintf(name, sizeof name, "%.155s%s%.100s", header + 345, header[345] ? "/" : "", header);
  mode_t mode = octal(header + 100, 8) & 0755;
  switch (header[156]) {
  case '5':
    return mkdirat(sink->directory, name, mode);
  case '2':
    snprintf(link, sizeof link, "%.100s", header + 157);
    return symlinkat(link, sink->directory, name);
  case '0':
    sink->file = openat(sink->directory, name,
                        O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, mode);
    if (sink->file < 0)
      return -1;
    sink->content_left = octal(header + 124, 12);
    sink->padding_left = (BLOCK - sink->content_left % BLOCK) % BLOCK;
    if (sink->content_left)
      return 0;
    int file = sink->file;
    sink->file = -1;
    return close(file);
  }
  errno = EBADMSG;
  return -1;
}

static int write_content(struct sink *sink, const char *bytes, size_t size) {
  for (size_t done = 0; done < size;) {
    ssize_t written = write(sink->file, bytes + done, size - done);
    if (written < 0 && errno != EINTR)
      return -1;
    done += written < 0 ? 0 : written;
  }
  sink->content_left -= size;
  if (sink->content_left)
    return 0;
  int file = sink->file;
  sink->file = -1;
  return close(file); /* network file systems report a full disk here */
}

static int feed(struct sink *sink, const char *bytes, size_t size) {
  while (size) {
    uint64_t wanted = sink->content_left   ? sink->content_left
                      : sink->padding_left ? sink->padding_left
                                           : BLOCK - sink->header_bytes;
    size_t taken = size < wanted ? size : wanted;
    if (sink->content_left) {
      if (write_content(sink, bytes, taken))
        return -1;
    } else if (sink->padding_left) {
      sink->padding_left -= taken;
    } else {
      memcpy(sink->header + sink->header_bytes, bytes, taken);
      sink->header_bytes += taken;
      if (sink->header_bytes == BLOCK) {
        sink->header_bytes = 0;
        if (begin_entry(sink))
          return -1;
      }
    }
    bytes += taken, size -= taken;
  }
  return 0;
}

/* gVisor's syncfs(2) takes 1.4 to 2.5 s for the tree, longer than the unpacking, and leaves three
 * quarters of the files in the memory of the node. gVisor has had this version since its beginning. */
static int sync_is_vain(void) {
  struct utsname kernel;
  return !uname(&kernel) && strstr(kernel.version, "Jan 10 15:06:54 PST 2016");
}

/* After a crash of the machine a file system may have the names without the content. So everything
 * is on the disk before the mark is made, and the mark before the tree gets its name. One syncfs(2)
 * for all, because an fsync(2) of each of 4,300 files takes seconds on a slow disk. */
static int mark_complete(int directory) {
  if (!sync_is_vain() && syncfs(directory) && errno != ENOSYS && errno != EPERM) /* seccomp */
    return -1;
  int mark = openat(directory, ".complete", O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0444);
  if (mark < 0)
    return -1;
  if (write(mark, trailer.id, sizeof trailer.id) != sizeof trailer.id || fsync(mark) ||
      fsync(directory))
    return -1;
  return close(mark);
}

static int unpack_into(int directory) {
  static char piece[1 << 17];
  ZSTD_DStream *stream = ZSTD_createDStream();
  struct sink sink = {.directory = directory, .file = -1};
  ZSTD_inBuffer in = {archive, trailer.packed_bytes, 0};
  size_t rest = 1;
  while (in.pos < in.size) {
    ZSTD_outBuffer out = {piece, sizeof piece, 0};
    rest = ZSTD_decompressStream(stream, &out, &in);
    if (ZSTD_isError(rest) || feed(&sink, piece, out.pos)) {
      int error = ZSTD_isError(rest) ? EBADMSG : errno;
      if (sink.file >= 0)
        close(sink.file);
      errno = error;
      return -1;
    }
  }
  ZSTD_freeDStream(stream);
  if (rest) {
    errno = EBADMSG;
    return -1;
  }
  return mark_complete(directory);
}

/* The places. */

static int is_trusted(const struct stat *info) {
  return (info->st_uid == geteuid() || info->st_uid == 0) && !(info->st_mode & 022);
}

enum found { NOTHING, TREE, SOMETHING_ELSE };

static int is_trusted_file(const char *tree, const char *name) {
  struct stat info;
  char path[BELOW_BYTES];
  snprintf(path, sizeof path, "%s/%s", tree, name);
  return !lstat(path, &info) && S_ISREG(info.st_mode) && is_trusted(&info);
}

/* Whether the mark in `tree` names this archive, and nobody else has made it. Its mode says nothing:
 * Kubernetes lets a pod's fsGroup write. */
static int has_mark(const char *tree) {
  char path[BELOW_BYTES], id[sizeof trailer.id + 1];
  struct stat info;
  snprintf(path, sizeof path, "%s/.complete", tree);
  int mark = open(path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
  int is_own = mark >= 0 && !fstat(mark, &info) && (info.st_uid == geteuid() || !info.st_uid);
  ssize_t length = is_own ? read(mark, id, sizeof id) : -1;
  if (mark >= 0)
    close(mark);
  return length == sizeof trailer.id && !memcmp(id, trailer.id, sizeof trailer.id);
}

static enum found look(const char *path) {
  struct stat info;
  if (lstat(path, &info))
    return errno == ENOENT ? NOTHING : SOMETHING_ELSE;
  return S_ISDIR(info.st_mode) && is_trusted(&info) && is_trusted_file(path, ".complete") &&
                 is_trusted_file(path, "bin/execd") && has_mark(path)
             ? TREE
             : SOMETHING_ELSE;
}

static void sweep(const char *base) {
  DIR *names = opendir(base);
  if (!names)
    return;
  for (struct dirent *entry; (entry = readdir(names));) {
    char path[BELOW_BYTES];
    struct stat info;
    if (strncmp(entry->d_name, PART, strlen(PART)))
      continue;
    snprintf(path, sizeof path, "%s/%s", base, entry->d_name);
    int part = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (part < 0)
      continue;
    if (!fstat(part, &info) && info.st_uid == geteuid() && !flock(part, LOCK_EX | LOCK_NB))
      remove_tree(path);
    close(part);
  }
  closedir(names);
}

static void become(const char *tree, int argc, char **argv) {
  char program[BELOW_BYTES];
  char **words = calloc(argc + 2, sizeof *words);
  snprintf(program, sizeof program, "%s/bin/execd", tree);
  words[0] = program;
  words[1] = "serve";
  for (int n = 1; n < argc; n++)
    words[n] = argv[n];
  execv(program, words);
}

/* The owner of BASE may put another tree there, also while this one runs. */
static int is_safe(const char *base) {
  struct stat info;
  if (stat(base, &info))
    give_reason(base, "no such directory", errno);
  else if (info.st_uid != geteuid() && info.st_uid != 0)
    give_reason(base, "belongs to another user", 0);
  else
    return 1;
  return 0;
}

static int has_room(const char *base) {
  struct statvfs found;
  if (statvfs(base, &found))
    give_reason(base, "cannot be looked at", errno);
  else if (found.f_flag & ST_NOEXEC)
    give_reason(base, "mounted noexec", 0);
  else if (found.f_flag & ST_RDONLY)
    give_reason(base, "mounted read-only", 0);
  else if (found.f_frsize && found.f_blocks &&
           found.f_bavail * found.f_frsize < trailer.unpacked_bytes + trailer.unpacked_bytes / 3)
    give_reason(base, "too little space", 0);
  else
    return 1;
  return 0;
}

/* A new part, locked. Another start may sweep a part between its making and its lock: then the lock
 * is on a folder without a name, and the next part is made. */
static int make_part(char *path, size_t size, const char *base) {
  for (;;) {
    struct stat locked, named;
    snprintf(path, size, "%s/%sXXXXXX", base, PART);
    if (!mkdtemp(path))
      return -1;
    int part = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (part < 0 && errno == ENOENT)
      continue;
    if (part < 0 || flock(part, LOCK_EX) || fstat(part, &locked))
      return -1;
    if (!lstat(path, &named) && named.st_ino == locked.st_ino)
      return part;
    close(part);
  }
}

static int unpack_at(const char *base, const char *tree) {
  char path[BELOW_BYTES];
  int part = make_part(path, sizeof path, base);
  if (part < 0) {
    give_reason(base, "cannot make a directory", errno);
    return -1;
  }
  int failed =
      unpack_into(part) || fchmod(part, 0755) || (rename(path, tree) && look(tree) != TREE);
  if (failed)
    give_reason(base, "cannot unpack", errno);
  remove_tree(path); /* after a lost rename too; after a won one there is nothing of this name */
  close(part);
  return failed ? -1 : 0;
}

static void start_from(const char *base, int argc, char **argv) {
  char tree[PATH_MAX];
  if (!is_safe(base))
    return;
  snprintf(tree, sizeof tree, "%s/.execd-%.16s", base, trailer.id);
  enum found found = look(tree);
  if (found == SOMETHING_ELSE) {
    give_reason(base, "holds something else under the tree's name", 0);
    return;
  }
  if (found == NOTHING) {
    if (!has_room(base))
      return;
    sweep(base);
    if (unpack_at(base, tree))
      return;
  }
  become(tree, argc, argv);
  give_reason(base, "cannot run the tree", errno);
}

static int is_empty_or_part(const char *path) {
  DIR *names = opendir(path);
  int others = 0, has_mark = 0;
  for (struct dirent *entry; names && (entry = readdir(names));) {
    has_mark |= !strcmp(entry->d_name, ".part");
    others |= strcmp(entry->d_name, ".") && strcmp(entry->d_name, "..") &&
              strcmp(entry->d_name, "lost+found");
  }
  if (names)
    closedir(names);
  return names && (has_mark || !others);
}

static void empty(const char *path) {
  DIR *names = opendir(path);
  for (struct dirent *entry; names && (entry = readdir(names));) {
    char below[BELOW_BYTES];
    snprintf(below, sizeof below, "%s/%s", path, entry->d_name);
    if (strcmp(entry->d_name, ".") && strcmp(entry->d_name, "..") &&
        strcmp(entry->d_name, ".part") && strcmp(entry->d_name, "lost+found"))
      remove_tree(below);
  }
  if (names)
    closedir(names);
}

static int fail(const char *path, const char *what) {
  dprintf(STDERR_FILENO, "execd: --unpack %s: %s%s%s\n", path, what, errno ? ": " : "",
          errno ? strerror(errno) : "");
  return 1;
}

static int unpack_to(const char *path) {
  char mark_path[BELOW_BYTES];
  errno = 0;
  if (mkdir(path, 0755) && errno != EEXIST)
    return fail(path, "cannot make the directory");
  if (has_mark(path)) /* a container's second start */
    return 0;
  errno = 0;
  snprintf(mark_path, sizeof mark_path, "%s/.complete", path);
  if (!access(mark_path, F_OK))
    return fail(path, "holds another execd, or another user's: empty the directory first");
  errno = 0;
  if (!is_empty_or_part(path))
    return fail(path, "is no empty directory");
  int directory = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  int mark = directory < 0 ? -1 : openat(directory, ".part", O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
  if (mark < 0)
    return fail(path, "cannot write");
  if (flock(mark, LOCK_EX | LOCK_NB))
    return fail(path, "another execd unpacks there");
  if (has_mark(path)) /* another has finished between the first look and the lock */
    return unlinkat(directory, ".part", 0) ? fail(path, "cannot write") : 0;
  empty(path);
  if (unpack_into(directory) || unlinkat(directory, ".part", 0))
    return fail(path, "cannot unpack");
  return 0;
}

int main(int argc, char **argv) {
  static char folder[PATH_MAX];
  struct stat info;
  umask(022);
  int self = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
  if (self < 0)
    self = open(argv[0], O_RDONLY | O_CLOEXEC); /* no /proc */
  if (self < 0 || fstat(self, &info) || info.st_size < (off_t)sizeof trailer ||
      pread(self, &trailer, sizeof trailer, info.st_size - sizeof trailer) != sizeof trailer ||
      memcmp(trailer.magic, "EXECDZ01", 8) ||
      trailer.offset + trailer.packed_bytes + sizeof trailer != (uint64_t)info.st_size) {
    dprintf(STDERR_FILENO, "execd: this file is cut or changed: copy it again\n");
    return NO_PLACE;
  }
  const char *file = mmap(0, info.st_size, PROT_READ, MAP_PRIVATE, self, 0);
  if (file == MAP_FAILED) {
    dprintf(STDERR_FILENO, "execd: cannot map this file: %s\n", strerror(errno));
    return NO_PLACE;
  }
  archive = file + trailer.offset;
  if (argc == 3 && !strcmp(argv[1], "--unpack"))
    return unpack_to(argv[2]);
  ssize_t length = readlink("/proc/self/exe", folder, sizeof folder - 1);
  char *slash = length > 0 ? strrchr(folder, '/') : 0;
  if (slash)
    *(slash == folder ? slash + 1 : slash) = 0;
  const char *asked = getenv("EXECD_UNPACK_DIR");
  const char *bases[] = {slash ? folder : 0, "/opt", "/var/lib",     "/run", "/var/tmp",
                         "/tmp",             "/dev/shm", getenv("HOME")};
  if (asked && *asked)
    start_from(asked, argc, argv);
  else
    for (size_t n = 0; n < sizeof bases / sizeof *bases; n++)
      if (bases[n] && bases[n][0] == '/')
        start_from(bases[n], argc, argv);
  dprintf(STDERR_FILENO,
          "execd: no place for the tree (%lu MB, writable, not noexec); set EXECD_UNPACK_DIR:%s\n",
          (unsigned long)(trailer.unpacked_bytes / 1000000 + 1), reasons);
  return NO_PLACE;
}
