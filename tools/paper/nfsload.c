/* Clients of NFS version 3, a thread and a share each, that write a file and read it back, as the clients of the Sun Storage 7000 experiment did.
 *
 *   nfsload write|read HOST NFS_PORT MOUNT_PORT CONTENT FILE_BYTES SHARE...
 *
 * A file is copies of CONTENT, one after the other. A client has DEPTH requests of at most PIECE bytes under way. A writer ends with COMMIT; a
 * reader compares each byte. All begin together when all have mounted. Prints a line for each client: share, bytes, requests, seconds.
 * libnfs is its client: it needs nothing of the kernel, and caches nothing.
 */
#include "load.h"

#include <nfsc/libnfs.h>
#include <poll.h>
#include <pthread.h>

#define DEPTH 8
#define PIECE (1u << 20)
#define WAIT_MS 1000
/* A server that answers nothing for so long hangs. */
#define SILENT_SECONDS_MAX 300

struct client {
    const char *share;
    struct nfs_context *nfs;
    struct nfsfh *file;
    size_t next, done, piece;
    unsigned under_way;
    unsigned long requests;
    double seconds;
};

struct request {
    struct client *client;
    size_t offset, size;
};

static const char *host, *nfs_port, *mount_port;
static int is_writer;
static size_t file_bytes;
static struct content content;
static pthread_barrier_t all_mounted;

static void refuse(struct client *c, const char *what) {
    fprintf(stderr, "nfsload: %s: %s: %s\n", c->share, what, nfs_get_error(c->nfs));
    exit(1);
}

static void answered(int result, struct nfs_context *nfs, void *data, void *of) {
    struct request *r = of;
    struct client *c = r->client;
    (void)nfs;
    if (result != (int)r->size)
        refuse(c, is_writer ? "a write is not whole" : "a read is not whole");
    if (!is_writer && memcmp(data, content.bytes + r->offset % content.size, r->size)) {
        fprintf(stderr, "nfsload: %s: other bytes than were written, at %zu\n", c->share, r->offset);
        exit(1);
    }
    c->done += r->size;
    c->under_way--;
    free(r);
}

static void ask(struct client *c) {
    struct request *r = malloc(sizeof *r);
    if (!r)
        fail("memory for a request");
    size_t left = file_bytes - c->next;
    *r = (struct request){c, c->next, left < c->piece ? left : c->piece};
    int status = is_writer ? nfs_pwrite_async(c->nfs, c->file, r->offset, r->size, content.bytes + r->offset % content.size, answered, r)
                           : nfs_pread_async(c->nfs, c->file, r->offset, r->size, answered, r);
    if (status)
        refuse(c, "a request was not sent");
    c->next += r->size;
    c->under_way++;
    c->requests++;
}

static void *run(void *of) {
    struct client *c = of;
    char address[512];
    snprintf(address, sizeof address, "nfs://%s/%s?version=3&nfsport=%s&mountport=%s", host, c->share, nfs_port, mount_port);
    struct nfs_url *url = (c->nfs = nfs_init_context()) ? nfs_parse_url_dir(c->nfs, address) : 0;
    if (!url || nfs_mount(c->nfs, url->server, url->path))
        refuse(c, "mount");
    nfs_destroy_url(url);
    if (is_writer ? nfs_creat(c->nfs, "/data", 0644, &c->file) : nfs_open(c->nfs, "/data", O_RDONLY, &c->file))
        refuse(c, "open");
    size_t most = is_writer ? nfs_get_writemax(c->nfs) : nfs_get_readmax(c->nfs);
    c->piece = most < PIECE ? most : PIECE;
    pthread_barrier_wait(&all_mounted);
    double began = now(), answer_at = began;
    while (c->done < file_bytes) {
        size_t before = c->done;
        while (c->under_way < DEPTH && c->next < file_bytes)
            ask(c);
        struct pollfd p = {.fd = nfs_get_fd(c->nfs), .events = nfs_which_events(c->nfs)};
        if (poll(&p, 1, WAIT_MS) < 0)
            fail("poll");
        if (nfs_service(c->nfs, p.revents) < 0)
            refuse(c, "the connection");
        if (c->done > before)
            answer_at = now();
        else if (now() > answer_at + SILENT_SECONDS_MAX)
            refuse(c, "no answer");
    }
    if (is_writer && nfs_fsync(c->nfs, c->file))
        refuse(c, "commit");
    c->seconds = now() - began;
    nfs_close(c->nfs, c->file);
    nfs_umount(c->nfs);
    nfs_destroy_context(c->nfs);
    return 0;
}

int main(int count, char **arguments) {
    int clients = count - 7;
    is_writer = count > 1 && !strcmp(arguments[1], "write");
    if (clients < 1 || (!is_writer && strcmp(arguments[1], "read"))) {
        fprintf(stderr, "usage: nfsload write|read HOST NFS_PORT MOUNT_PORT CONTENT FILE_BYTES SHARE...\n");
        return 2;
    }
    host = arguments[2], nfs_port = arguments[3], mount_port = arguments[4];
    file_bytes = strtoull(arguments[6], 0, 10);
    /* A piece may begin anywhere in the content: its beginning follows its end. */
    struct content read = read_content(arguments[5]);
    unsigned char *bytes = malloc(read.size + PIECE);
    if (!bytes)
        fail("memory for the contents");
    for (size_t at = 0; at < read.size + PIECE; at += read.size)
        memcpy(bytes + at, read.bytes, at + read.size <= read.size + PIECE ? read.size : PIECE);
    content = (struct content){bytes, read.size};
    struct client all[clients];
    pthread_t threads[clients];
    pthread_barrier_init(&all_mounted, 0, clients);
    for (int i = 0; i < clients; i++) {
        all[i] = (struct client){.share = arguments[7 + i]};
        if (pthread_create(&threads[i], 0, run, &all[i]))
            fail("a thread");
    }
    for (int i = 0; i < clients; i++)
        pthread_join(threads[i], 0);
    for (int i = 0; i < clients; i++)
        printf("%s %zu %lu %.6f\n", all[i].share, all[i].done, all[i].requests, all[i].seconds);
    return 0;
}
