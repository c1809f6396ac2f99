/* The programs of the tree: bin/python3, the tree's Python, and bin/execd, the daemon. One static
 * program with two names:
 *
 *     bin/python3 ARG...  becomes  lib/ld.so OPTIONS lib/python3.13 ARG...
 *     bin/execd ARG...    becomes  lib/ld.so OPTIONS lib/python3.13 -I app ARG...
 *
 * The kernel would take the loader and the libraries of the image, which may be another C library,
 * an older one, or none. So the launcher calls the tree's own loader (ld.so(8)): --library-path
 * goes before LD_LIBRARY_PATH and is inherited by no program, and --inhibit-cache leaves out the
 * image's ld.so.cache. The launcher finds the tree by its own file, so the tree may lie anywhere.
 *
 * The loader would obey the image's LD_PRELOAD and its kind, which name libraries for the image's C
 * library: musl's crash glibc before main. So those variables change their names to
 * EXECD_LOADER_LD_..., and sitecustomize.py gives the names back, for programs of the image that
 * Python starts. GLIBC_TUNABLES stays, because execd sets it for sessions.
 *
 * Exit codes as of a shell: 127 where the tree has no loader, 126 where it cannot be run. */
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

extern char **environ;

static const char PREFIX[] = "EXECD_LOADER_";
static const char *const LOADERS_OWN[] = {
    "LD_PRELOAD=", "LD_AUDIT=",   "LD_LIBRARY_PATH=", "LD_BIND_NOW=",
    "LD_DEBUG=",   "LD_PROFILE=", "LD_BIND_NOT=",     "LD_DYNAMIC_WEAK=",
};
enum { N_LOADERS_OWN = sizeof LOADERS_OWN / sizeof *LOADERS_OWN, N_OPTIONS = 9 };

static int fail(const char *what, const char *path) {
  int error = errno;
  dprintf(STDERR_FILENO, "execd: %s %s: %s\n", what, path, strerror(error));
  return error == ENOENT ? 127 : 126;
}

/* Memory of a renamed variable is never freed: execve(2) follows. */
static int hide(char **variable) {
  for (int n = 0; n < N_LOADERS_OWN; n++) {
    if (strncmp(*variable, LOADERS_OWN[n], strlen(LOADERS_OWN[n])))
      continue;
    char *hidden = malloc(sizeof PREFIX + strlen(*variable));
    if (!hidden)
      return -1;
    strcat(strcpy(hidden, PREFIX), *variable);
    *variable = hidden;
    return 0;
  }
  return 0;
}

int main(int argc, char **argv) {
  char tree[PATH_MAX];
  ssize_t length = readlink("/proc/self/exe", tree, sizeof tree - 1);
  if (length < 0)
    return fail("cannot find the tree: it needs /proc:", "/proc/self/exe");
  tree[length] = 0;
  char *slash = strrchr(tree, '/'), *name = slash + 1;
  int is_daemon = !strcmp(name, "execd");
  *slash = 0;
  slash = strrchr(tree, '/');
  if (!slash)
    return 127;
  *slash = 0;

  static char loader[PATH_MAX + 32], libraries[PATH_MAX + 32], python[PATH_MAX + 32],
      executable[PATH_MAX + 32], app[PATH_MAX + 32];
  snprintf(loader, sizeof loader, "%s/lib/ld.so", tree);
  snprintf(libraries, sizeof libraries, "%s/lib", tree);
  snprintf(python, sizeof python, "%s/lib/python", tree);
  snprintf(executable, sizeof executable, "%s/bin/python3", tree);
  snprintf(app, sizeof app, "%s/app", tree);
  char **words = calloc(argc + N_OPTIONS + 1, sizeof *words), **next = words;
  if (!words)
    return fail("no memory for", loader);
  *next++ = loader;
  *next++ = "--inhibit-cache";
  *next++ = "--library-path";
  *next++ = libraries;
  *next++ = "--argv0"; /* Python finds its prefix by this word: sys.executable */
  *next++ = is_daemon || !argc ? executable : argv[0];
  *next++ = python;
  if (is_daemon) {
    *next++ = "-I";
    *next++ = app;
  }
  for (int n = 1; n < argc; n++)
    *next++ = argv[n];
  for (char **variable = environ; *variable; variable++)
    if (hide(variable))
      return fail("no memory for", *variable);
  execve(loader, words, environ);
  return fail("cannot run", loader);
}
