/* A wall clock that can jump: the real time plus an offset in seconds from a file. Preloaded into the server. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static int (*real_gettime)(clockid_t, struct timespec *);
static const volatile long long *offset;

__attribute__((constructor)) static void begin(void)
{
	const char *path = getenv("CHAOS_CLOCK");
	int fd = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;

	real_gettime = dlsym(RTLD_NEXT, "clock_gettime");
	if (fd >= 0) {
		void *page = mmap(NULL, sizeof *offset, PROT_READ, MAP_SHARED, fd, 0);
		if (page != MAP_FAILED)
			offset = page;
		close(fd);
	}
}

int clock_gettime(clockid_t id, struct timespec *at)
{
	int failed = real_gettime(id, at);

	if (!failed && offset && (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE))
		at->tv_sec += *offset;
	return failed;
}

int gettimeofday(struct timeval *restrict at, void *restrict zone)
{
	struct timespec now;
	int failed = clock_gettime(CLOCK_REALTIME, &now);

	(void)zone;
	at->tv_sec = now.tv_sec;
	at->tv_usec = now.tv_nsec / 1000;
	return failed;
}

time_t time(time_t *at)
{
	struct timespec now = {0, 0};

	clock_gettime(CLOCK_REALTIME, &now);
	if (at)
		*at = now.tv_sec;
	return now.tv_sec;
}
