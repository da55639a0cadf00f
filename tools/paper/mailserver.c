/* PostMark's load with real mail as content: a pool of messages in mailboxes, and transactions on it.
 *
 *   mailserver DIR CONTENT MAILBOXES MESSAGES SIZE_MIN SIZE_MAX TRANSACTIONS READ_PERCENT SEED [SERIES]
 *
 * As in PostMark 1.5 (Katcher), written anew so that messages hold CONTENT instead of random letters: each transaction either reads a whole message
 * or appends to one (READ_PERCENT), and either makes a message or removes one (half and half). Reads and writes are of 16 KiB, nothing is synced.
 * Prints the seconds of making the pool, and of the transactions. SERIES: a file that gets a line with seconds and transactions done, twice a second.
 */
#include "load.h"

#define PIECE 16384

struct message {
    unsigned number, mailbox;
    size_t size;
};

static const char *root;
static struct content content;
static uint64_t state;
static struct message *pool;
static size_t count, room;
static unsigned mailboxes, numbers;
static size_t size_min, size_max;
static uint64_t read_bytes, written_bytes;

static void name(char *into, size_t length, const struct message *m) {
    snprintf(into, length, "%s/%03u/%u", root, m->mailbox, m->number);
}

static int open_message(const struct message *m, int flags) {
    char path[4096];
    name(path, sizeof path, m);
    int file = open(path, flags, 0600);
    if (file < 0)
        fail(path);
    return file;
}

static void make(void) {
    if (count == room)
        return;
    struct message m = {numbers++, next_random(&state) % mailboxes, size_min + next_random(&state) % (size_max - size_min)};
    int file = open_message(&m, O_WRONLY | O_CREAT | O_EXCL);
    write_content(file, &content, m.size, PIECE, &state);
    close(file);
    written_bytes += m.size;
    pool[count++] = m;
}

static void drop(void) {
    if (count < 2)
        return;
    size_t i = next_random(&state) % count;
    char path[4096];
    name(path, sizeof path, &pool[i]);
    if (unlink(path))
        fail(path);
    pool[i] = pool[--count];
}

static void read_one(void) {
    static unsigned char buffer[PIECE];
    struct message *m = &pool[next_random(&state) % count];
    int file = open_message(m, O_RDONLY);
    ssize_t got;
    while ((got = read(file, buffer, PIECE)) > 0)
        read_bytes += got;
    if (got < 0)
        fail("read");
    close(file);
}

static void append(void) {
    struct message *m = &pool[next_random(&state) % count];
    if (m->size >= size_max)
        return;
    size_t more = 1 + next_random(&state) % (size_max - m->size);
    int file = open_message(m, O_WRONLY | O_APPEND);
    write_content(file, &content, more, PIECE, &state);
    close(file);
    m->size += more;
    written_bytes += more;
}

int main(int given, char **a) {
    if (given != 10 && given != 11) {
        fprintf(stderr, "usage: mailserver DIR CONTENT MAILBOXES MESSAGES SIZE_MIN SIZE_MAX TRANSACTIONS READ_PERCENT SEED [SERIES]\n");
        return 2;
    }
    root = a[1];
    content = read_content(a[2]);
    mailboxes = atoi(a[3]);
    size_t messages = strtoul(a[4], 0, 10);
    size_min = strtoul(a[5], 0, 10);
    size_max = strtoul(a[6], 0, 10);
    unsigned long transactions = strtoul(a[7], 0, 10), reads = strtoul(a[8], 0, 10);
    state = strtoull(a[9], 0, 10);
    FILE *series = given == 11 ? fopen(a[10], "w") : 0;
    if (given == 11 && !series)
        fail(a[10]);
    /* As many are made as are removed, give or take. */
    room = messages + transactions;
    pool = calloc(room, sizeof *pool);
    if (!pool || mailboxes == 0 || messages == 0)
        fail("pool");
    for (unsigned i = 0; i < mailboxes; i++) {
        char path[4096];
        snprintf(path, sizeof path, "%s/%03u", root, i);
        if (mkdir(path, 0700) && errno != EEXIST)
            fail(path);
    }
    double began = now();
    for (size_t i = 0; i < messages; i++)
        make();
    double made = now(), told = made;
    uint64_t made_bytes = written_bytes;
    written_bytes = 0;
    for (unsigned long i = 0; i < transactions; i++) {
        if (next_random(&state) % 100 < reads)
            read_one();
        else
            append();
        if (next_random(&state) % 2)
            make();
        else
            drop();
        if (series && now() - told >= 0.5) {
            told = now();
            fprintf(series, "%.3f %lu %llu\n", told - made, i + 1, (unsigned long long)(read_bytes + written_bytes));
        }
    }
    if (series && fclose(series))
        fail("series");
    printf("{\"make_s\": %.3f, \"made_bytes\": %llu, \"transactions_s\": %.3f, \"read_bytes\": %llu, \"written_bytes\": %llu}\n", made - began,
           (unsigned long long)made_bytes, now() - made, (unsigned long long)read_bytes, (unsigned long long)written_bytes);
    return 0;
}
