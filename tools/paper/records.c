/* Writes and reads a file in records, as IOzone does: the six patterns of the SandForce article.
 *
 *   records PATTERN FILE FILE_BYTES RECORD_BYTES PERCENT SEED SECONDS
 *
 * PATTERN: write, read, random-write, random-read, fwrite, fread. Of each 4 KiB, PERCENT per cent compress to nothing: the rest are random bytes.
 * The file is gone through again until SECONDS are over (0: once), each time to its end. Prints seconds, for writes the seconds until the file was
 * durable, and how often it was gone through. Random patterns touch each record once each time, in an order of the seed.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define BLOCK 4096
/* Records are taken from here in turn: far more than any unit or window that a codec sees. */
#define SOURCE (64u << 20)

static uint64_t state;

static uint64_t next_random(void) {
    state += 0x9e3779b97f4a7c15u;
    uint64_t z = state;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec / 1e9;
}

static void fail(const char *what) {
    fprintf(stderr, "records: %s: %s\n", what, strerror(errno));
    exit(1);
}

static void fill(unsigned char *source, int percent) {
    static const char text[] = "records of a file, as compressible as they were told to be; ";
    size_t random_bytes = BLOCK * (100 - percent) / 100;
    for (size_t at = 0; at < SOURCE; at += BLOCK) {
        for (size_t i = 0; i < BLOCK; i++)
            source[at + i] = i < random_bytes ? (unsigned char)(next_random() >> 56) : (unsigned char)text[i % (sizeof text - 1)];
    }
}

int main(int count, char **arguments) {
    if (count != 8) {
        fprintf(stderr, "usage: records PATTERN FILE FILE_BYTES RECORD_BYTES PERCENT SEED SECONDS\n");
        return 2;
    }
    const char *pattern = arguments[1], *path = arguments[2];
    size_t file_bytes = strtoull(arguments[3], 0, 10), record = strtoull(arguments[4], 0, 10), records = file_bytes / record;
    int percent = atoi(arguments[5]), passes = 0;
    double least = atof(arguments[7]);
    state = strtoull(arguments[6], 0, 10);
    int is_write = strstr(pattern, "write") != 0, is_random = strncmp(pattern, "random-", 7) == 0, is_stream = pattern[0] == 'f';
    unsigned char *source, *buffer;
    if (records == 0 || SOURCE % record != 0 || posix_memalign((void **)&source, BLOCK, SOURCE) || posix_memalign((void **)&buffer, BLOCK, record))
        fail("sizes");
    size_t *order = malloc(records * sizeof *order);
    if (!order)
        fail("memory");
    for (size_t i = 0; i < records; i++)
        order[i] = i;
    for (size_t i = records - 1; is_random && i > 0; i--) {
        size_t j = next_random() % (i + 1), kept = order[i];
        order[i] = order[j];
        order[j] = kept;
    }
    if (is_write)
        fill(source, percent);
    /* write and fwrite make a new file; the random patterns work on what is there. */
    if (is_write && !is_random)
        unlink(path);
    double began = now();
    int file = open(path, is_write ? O_RDWR | O_CREAT : O_RDONLY, 0644);
    FILE *stream = file < 0 ? 0 : is_stream ? fdopen(file, is_write ? "w" : "r") : 0;
    if (file < 0 || (is_stream && !stream))
        fail(path);
    do {
        if (is_stream)
            rewind(stream);
        for (size_t i = 0; i < records; i++) {
            unsigned char *from = source + i * record % SOURCE;
            size_t done = is_stream ? (is_write ? fwrite(from, 1, record, stream) : fread(buffer, 1, record, stream)) : 0;
            while (!is_stream && done < record) {
                off_t at = order[i] * record + done;
                ssize_t got = is_write ? pwrite(file, from + done, record - done, at) : pread(file, buffer + done, record - done, at);
                if (got <= 0)
                    break;
                done += got;
            }
            if (done != record)
                fail(pattern);
        }
        /* What is written twice before it reaches the disk would be a run in memory. */
        if ((is_stream && fflush(stream)) || (is_write && fdatasync(file)))
            fail("flush");
        /* The next time comes from the disk again. */
        if (!is_write && posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED))
            fail("fadvise");
        passes++;
    } while (now() - began < least);
    double ended = now();
    if (is_write && fsync(file))
        fail("fsync");
    printf("%.6f %.6f %d\n", ended - began, now() - began, passes);
    return 0;
}
