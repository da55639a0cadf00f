/* What the loads have in common: random numbers of a seed, time, and contents from a file of real data. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static void fail(const char *what) {
    fprintf(stderr, "%s: %s\n", what, strerror(errno));
    exit(1);
}

static uint64_t next_random(uint64_t *state) {
    *state += 0x9e3779b97f4a7c15u;
    uint64_t z = *state;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec / 1e9;
}

/* Of how many requests at most the time is taken. */
#define TIMES_MAX (1u << 20)

static int by_time(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Prints how many there were, and the median and the 99th percentile of their seconds in microseconds. */
static void print_times(double *times, size_t done) {
    qsort(times, done, sizeof *times, by_time);
    printf("%zu %.1f %.1f\n", done, times[done / 2] * 1e6, times[done * 99 / 100] * 1e6);
}

struct content {
    const unsigned char *bytes;
    size_t size;
};

/* Read into memory beforehand: the load is not to wait for it. */
static struct content read_content(const char *path) {
    struct content c;
    struct stat s;
    int file = open(path, O_RDONLY);
    if (file < 0 || fstat(file, &s) || s.st_size < (1 << 20))
        fail(path);
    c.size = s.st_size;
    unsigned char *bytes = malloc(c.size);
    for (size_t done = 0; bytes && done < c.size;) {
        ssize_t got = read(file, bytes + done, c.size - done);
        if (got <= 0)
            fail(path);
        done += got;
    }
    if (!bytes)
        fail("memory for the contents");
    c.bytes = bytes;
    close(file);
    return c;
}

/* Writes `size` bytes of the contents, from a random place on, in pieces of `piece`. */
static void write_content(int file, const struct content *c, size_t size, size_t piece, uint64_t *state) {
    size_t from = next_random(state) % (c->size - piece);
    while (size > 0) {
        size_t part = size < piece ? size : piece;
        if (from + part > c->size)
            from = 0;
        if (write(file, c->bytes + from, part) != (ssize_t)part)
            fail("write");
        from += part;
        size -= part;
    }
}
