/* The time of a read: 16 KiB at a random page of a file of 512 MiB, past the page cache, one after the other.
 *
 *   pageread FILE CONTENT SECONDS
 *
 * Prints how many there were, and the median and the 99th percentile in microseconds.
 */
#include "load.h"

#define PAGE 16384
#define PIECE (1u << 20)
#define FILE_BYTES (512u << 20)

int main(int given, char **a) {
    if (given != 4) {
        fprintf(stderr, "usage: pageread FILE CONTENT SECONDS\n");
        return 2;
    }
    struct content content = read_content(a[2]);
    uint64_t state = 1;
    double *times = malloc(TIMES_MAX * sizeof *times);
    unsigned char *page = aligned_alloc(4096, PAGE);
    int file = open(a[1], O_RDWR | O_CREAT, 0600);
    if (file < 0 || !times || !page)
        fail(a[1]);
    for (unsigned at = 0; at < FILE_BYTES; at += PIECE) {
        if (pwrite(file, content.bytes + next_random(&state) % (content.size - PIECE), PIECE, at) != PIECE)
            fail("write");
    }
    if (fsync(file) || close(file))
        fail("fsync");
    file = open(a[1], O_RDONLY | O_DIRECT);
    if (file < 0)
        fail(a[1]);
    size_t done = 0;
    for (double until = now() + atof(a[3]); done < TIMES_MAX && now() < until; done++) {
        double began = now();
        if (pread(file, page, PAGE, (off_t)(next_random(&state) % (FILE_BYTES / PAGE)) * PAGE) != PAGE)
            fail("read");
        times[done] = now() - began;
    }
    print_times(times, done);
    return 0;
}
