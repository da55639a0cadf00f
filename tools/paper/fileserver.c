/* A file server's load at a target rate: operations achieved and their response time, after SPEC SFS 2008's mix for CIFS.
 *
 *   fileserver DIR CONTENT FILES FILE_BYTES TARGET_PER_S SECONDS THREADS SEED
 *
 * The mix, in per cent, after the published one with the kinds put together: read 20, write 9, open and close 20, attributes 46, list a directory 3, make and
 * remove a file 2. Reads and writes are of 1 to 64 KiB, mostly small. Operations start at times that are set beforehand, so that one that waits makes
 * those behind it wait, too, as clients do; a response time counts from the set time. Contents come from CONTENT. A tenth of the files takes most operations.
 */
#include "load.h"
#include <dirent.h>
#include <pthread.h>

#define PER_DIRECTORY 64
#define PIECE 65536

static const char *root;
static struct content content;
static size_t files, file_bytes;
static double period, seconds, begin;
static unsigned threads;

struct worker {
    pthread_t thread;
    unsigned index;
    uint64_t state, done, read_bytes, written_bytes;
    double waited, longest;
};

static void path_of(char *into, size_t length, size_t file) {
    snprintf(into, length, "%s/%05zu/%zu", root, file / PER_DIRECTORY, file);
}

static size_t choose(uint64_t *state) {
    uint64_t r = next_random(state);
    return r % 100 < 70 ? (r / 100) % (files / 10) * 10 : (r / 100) % files;
}

/* Mostly small, as published traces have it. */
static size_t transfer(uint64_t *state) {
    uint64_t r = next_random(state) % 100;
    return r < 30 ? 1024 : r < 55 ? 4096 : r < 75 ? 8192 : r < 90 ? 32768 : 65536;
}

static void operate(struct worker *w) {
    static __thread unsigned char buffer[PIECE];
    char path[4096];
    struct stat s;
    unsigned kind = next_random(&w->state) % 100;
    size_t file = choose(&w->state);
    path_of(path, sizeof path, file);
    if (kind < 29) {
        int is_write = kind >= 20;
        size_t size = transfer(&w->state);
        off_t at = next_random(&w->state) % (file_bytes / size) * size;
        int fd = open(path, is_write ? O_WRONLY : O_RDONLY);
        if (fd < 0)
            fail(path);
        const unsigned char *from = content.bytes + next_random(&w->state) % (content.size - PIECE);
        ssize_t got = is_write ? pwrite(fd, from, size, at) : pread(fd, buffer, size, at);
        if (got < 0)
            fail(path);
        *(is_write ? &w->written_bytes : &w->read_bytes) += got;
        close(fd);
    } else if (kind < 49) {
        int fd = open(path, O_RDONLY);
        if (fd < 0 || fstat(fd, &s))
            fail(path);
        close(fd);
    } else if (kind < 95) {
        if (stat(path, &s))
            fail(path);
    } else if (kind < 98) {
        *strrchr(path, '/') = 0;
        DIR *dir = opendir(path);
        if (!dir)
            fail(path);
        while (readdir(dir))
            ;
        closedir(dir);
    } else {
        snprintf(path + strlen(path), 64, ".new-%u", w->index);
        int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
        if (fd < 0)
            fail(path);
        size_t size = transfer(&w->state);
        write_content(fd, &content, size, PIECE, &w->state);
        w->written_bytes += size;
        close(fd);
        if (unlink(path))
            fail(path);
    }
}

static void *work(void *given) {
    struct worker *w = given;
    /* The threads take turns: operation i is due at i periods. */
    for (uint64_t i = w->index;; i += threads) {
        double due = begin + i * period;
        if (due - begin >= seconds || now() - begin >= seconds)
            return 0;
        double early = due - now();
        if (early > 0) {
            struct timespec t = {(time_t)early, (long)((early - (time_t)early) * 1e9)};
            nanosleep(&t, 0);
        }
        operate(w);
        double took = now() - due;
        w->done++;
        w->waited += took;
        if (took > w->longest)
            w->longest = took;
    }
}

int main(int given, char **a) {
    if (given != 9) {
        fprintf(stderr, "usage: fileserver DIR CONTENT FILES FILE_BYTES TARGET_PER_S SECONDS THREADS SEED\n");
        return 2;
    }
    root = a[1];
    content = read_content(a[2]);
    files = strtoul(a[3], 0, 10);
    file_bytes = strtoul(a[4], 0, 10);
    period = 1 / atof(a[5]);
    seconds = atof(a[6]);
    threads = atoi(a[7]);
    uint64_t state = strtoull(a[8], 0, 10);
    struct worker *workers = calloc(threads, sizeof *workers);
    if (!workers || files < 10 || threads == 0 || file_bytes < PIECE)
        fail("arguments");
    /* The set of files is made once and used for all targets. */
    for (size_t i = 0; i < files; i++) {
        char path[4096];
        path_of(path, sizeof path, i);
        struct stat s;
        if (!stat(path, &s) && (size_t)s.st_size == file_bytes)
            continue;
        char *slash = strrchr(path, '/');
        *slash = 0;
        if (mkdir(path, 0700) && errno != EEXIST)
            fail(path);
        *slash = '/';
        int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
        if (fd < 0)
            fail(path);
        write_content(fd, &content, file_bytes, PIECE, &state);
        close(fd);
    }
    begin = now();
    for (unsigned i = 0; i < threads; i++) {
        workers[i].index = i;
        workers[i].state = state + i * 1000003u;
        if (pthread_create(&workers[i].thread, 0, work, &workers[i]))
            fail("thread");
    }
    uint64_t done = 0, read_bytes = 0, written_bytes = 0;
    double waited = 0, longest = 0;
    for (unsigned i = 0; i < threads; i++) {
        pthread_join(workers[i].thread, 0);
        done += workers[i].done;
        waited += workers[i].waited;
        read_bytes += workers[i].read_bytes;
        written_bytes += workers[i].written_bytes;
        longest = workers[i].longest > longest ? workers[i].longest : longest;
    }
    double took = now() - begin;
    printf("{\"operations\": %llu, \"per_s\": %.1f, \"response_ms\": %.3f, \"longest_ms\": %.1f, \"read_bytes\": %llu, \"written_bytes\": %llu}\n",
           (unsigned long long)done, done / took, 1000 * waited / (done ? done : 1), 1000 * longest, (unsigned long long)read_bytes, (unsigned long long)written_bytes);
    return 0;
}
