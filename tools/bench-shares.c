/* What tools/bench-shares times in small operations: makes COUNT files of BYTES bytes in DIR, THREADS threads each in a directory
 * of its own, with an fsync of each file if FSYNC is 1. Content is text of a generator, of which a half is redundant. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const char *top;
static int threads, count, bytes, durable;

static void fail(const char *what)
{
	perror(what);
	exit(1);
}

static void *work(void *argument)
{
	int thread = (int)(long)argument;
	unsigned state = 12345u + (unsigned)thread;
	char path[4096];
	char *text = malloc((size_t)bytes + 1);

	if (!text)
		fail("malloc");
	snprintf(path, sizeof(path), "%s/thread%d", top, thread);
	if (mkdir(path, 0755))
		fail(path);
	for (int number = thread; number < count; number += threads) {
		for (int at = 0; at < bytes; at++) {
			state = state * 1103515245u + 12345u;
			text[at] = at % 64 < 32 && at >= 64 ? text[at - 64] : (char)('a' + (state >> 16) % 26);
		}
		snprintf(path, sizeof(path), "%s/thread%d/file%d", top, thread, number);
		int file = open(path, O_CREAT | O_EXCL | O_WRONLY, 0644);
		if (file < 0)
			fail(path);
		if (write(file, text, (size_t)bytes) != bytes)
			fail("write");
		if (durable && fsync(file))
			fail("fsync");
		if (close(file))
			fail("close");
	}
	free(text);
	return NULL;
}

int main(int argc, char **argv)
{
	if (argc != 6) {
		fprintf(stderr, "usage: bench-shares DIR THREADS COUNT BYTES FSYNC\n");
		return 2;
	}
	top = argv[1];
	threads = atoi(argv[2]);
	count = atoi(argv[3]);
	bytes = atoi(argv[4]);
	durable = atoi(argv[5]);
	pthread_t *all = calloc((size_t)threads, sizeof(*all));
	if (!all)
		fail("calloc");
	for (long thread = 0; thread < threads; thread++)
		if (pthread_create(&all[thread], NULL, work, (void *)thread))
			fail("pthread_create");
	for (int thread = 0; thread < threads; thread++)
		pthread_join(all[thread], NULL);
	free(all);
	return 0;
}
