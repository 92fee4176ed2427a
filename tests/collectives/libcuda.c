/* A stand-in for CUDA's driver: as much of it as links call, done at once, in the host's memory. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

enum { SUCCESS, INVALID_VALUE, NOT_FOUND = 500 };
enum { UNIFIED = 4 };

typedef struct {
  size_t x, y;
  unsigned kind;
  void *host;
  char *device;
  void *array;
  size_t pitch;
} End;

typedef struct {
  End source, target;
  size_t width, rows;
} Copy2D;

int cuMemcpy2DAsync_v2(const Copy2D *copy, void *stream) {
  End source = copy->source, target = copy->target;
  if (source.kind != UNIFIED || target.kind != UNIFIED || copy->width > source.pitch || copy->width > target.pitch)
    return INVALID_VALUE;
  for (size_t row = 0; row < copy->rows; row++)
    memcpy(target.device + row * target.pitch, source.device + row * source.pitch, copy->width);
  return SUCCESS;
}

int cuStreamWriteValue32_v2(void *stream, unsigned *at, unsigned value, unsigned flags) {
  if (!at) return INVALID_VALUE;
  *at = value;
  return SUCCESS;
}

int cuFuncSetAttribute(void *function, int attribute, int value) { return function ? SUCCESS : INVALID_VALUE; }

/* Whoever begins with this asks it for all else, by names without their versions. */
int cuGetProcAddress_v2(const char *name, void **found, int version, unsigned long flags, int *status) {
  char newest[128];
  snprintf(newest, sizeof newest, "%s_v2", name);
  void *self = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
  if (!(*found = dlsym(self, newest))) *found = dlsym(self, name);
  return *found ? SUCCESS : NOT_FOUND;
}
