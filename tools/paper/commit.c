/* The time of a commit: writes 8 KiB and waits until it is durable, one after the other, over a file of 16 MiB that is there already.
 *
 *   commit FILE CONTENT SECONDS
 *
 * Prints how many there were, and the median and the 99th percentile in microseconds.
 */
#include "load.h"

#define PAGE 8192
#define FILE_BYTES (16u << 20)

int main(int given, char **a) {
    if (given != 4) {
        fprintf(stderr, "usage: commit FILE CONTENT SECONDS\n");
        return 2;
    }
    struct content content = read_content(a[2]);
    uint64_t state = 1;
    double *times = malloc(TIMES_MAX * sizeof *times);
    int file = open(a[1], O_RDWR | O_CREAT, 0600);
    if (file < 0 || !times)
        fail(a[1]);
    for (unsigned at = 0; at < FILE_BYTES; at += PAGE) {
        if (pwrite(file, content.bytes + at % (content.size - PAGE), PAGE, at) != PAGE)
            fail("write");
    }
    if (fsync(file))
        fail("fsync");
    size_t done = 0;
    for (double until = now() + atof(a[3]); done < TIMES_MAX && now() < until; done++) {
        double began = now();
        const unsigned char *from = content.bytes + next_random(&state) % (content.size - PAGE);
        if (pwrite(file, from, PAGE, done * PAGE % FILE_BYTES) != PAGE || fdatasync(file))
            fail("write");
        times[done] = now() - began;
    }
    print_times(times, done);
    return 0;
}
