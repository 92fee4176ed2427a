/* A stand-in for CUDA's driver: as much of it as links and Triton's launcher call, done at once, in the host's memory. */
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

/* Of Triton's launcher: a module has one function, and no kernel runs. */
int loaded, launched, shaped;
char functions[999];

int cuDeviceGet(int *device, int number) { return *device = number, SUCCESS; }
int cuCtxGetDevice(int *device) { return *device = 0, SUCCESS; }
int cuDeviceGetAttribute(int *value, int attribute, int device) { return *value = 227 << 10, SUCCESS; }
int cuCtxGetCurrent(void **context) { return *context = &loaded, SUCCESS; }
int cuModuleLoadData(void **module, const void *image) { return *module = &loaded, loaded++, SUCCESS; }
int cuModuleGetFunction(void **function, void *module, const char *name) { return *function = functions + loaded, SUCCESS; }
int cuFuncGetAttribute(int *value, int attribute, void *function) { return *value = attribute ? 0 : 1024, SUCCESS; }
int cuPointerGetAttribute(void **value, int attribute, void *at) { return *value = at, SUCCESS; }
int cuLaunchKernelEx(const void *how, void *function, void **args, void **more) { return launched++, SUCCESS; }
int cuFuncSetAttribute(void *function, int attribute, int value) {
  int carveout = attribute == 9 && value == 100; /* all of it as shared memory */
  return shaped++, function && carveout ? SUCCESS : INVALID_VALUE;
}

#define UNCALLED(name) int name(void) { return NOT_FOUND; }
UNCALLED(cuModuleUnload)
UNCALLED(cuCtxGetLimit) UNCALLED(cuCtxSetCurrent) UNCALLED(cuCtxSetLimit) UNCALLED(cuDevicePrimaryCtxRetain)
UNCALLED(cuDriverGetVersion) UNCALLED(cuFuncSetCacheConfig) UNCALLED(cuGetErrorString)

/* Whoever begins with this asks it for all else, by names without their versions. */
int cuGetProcAddress_v2(const char *name, void **found, int version, unsigned long flags, int *status) {
  char newest[128];
  snprintf(newest, sizeof newest, "%s_v2", name);
  void *self = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
  if (!(*found = dlsym(self, newest))) *found = dlsym(self, name);
  return *found ? SUCCESS : NOT_FOUND;
}
