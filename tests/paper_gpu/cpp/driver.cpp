// libcuda.so.1: the driver functions that torch and Triton use. Functions that need a device call libpaper_cuda.so,
// which is loaded into every process; without it (LD_PRELOAD unset) there is no device.
#include <cuda.h>

#include <dlfcn.h>

#include "machine.h"

#define API extern "C" __attribute__((visibility("default")))
using namespace paper;

// Return a function of libpaper_cuda.so.
template <class Function>
static Function* of_runtime(const char* name) {
  auto* function = (Function*)dlsym(RTLD_DEFAULT, name);
  if (!function) die(std::string(name) + " is missing: libpaper_cuda.so is not in LD_PRELOAD");
  return function;
}

API CUresult cuInit(unsigned) { return visible_devices().empty() ? CUDA_ERROR_NO_DEVICE : CUDA_SUCCESS; }
API CUresult cuDriverGetVersion(int* version) {
  *version = driver().cuda;
  return CUDA_SUCCESS;
}
API CUresult cuDeviceGetCount(int* count) {
  *count = (int)visible_devices().size();
  return CUDA_SUCCESS;
}
API CUresult cuDeviceGet(CUdevice* device, int index) {
  if (index < 0 || index >= (int)visible_devices().size()) return CUDA_ERROR_INVALID_DEVICE;
  *device = index;
  return CUDA_SUCCESS;
}
// The enumerators of cudart and the driver have the same values.
API CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute attribute, CUdevice device) {
  return (CUresult)of_runtime<int(int*, int, int)>("cudaDeviceGetAttribute")(value, attribute, device);
}
API CUresult cuDeviceGetName(char* name, int size, CUdevice device) {
  snprintf(name, size, "%s", gpus()[visible_devices()[device].gpu].profile->name);
  return CUDA_SUCCESS;
}
API CUresult cuDeviceGetUuid(CUuuid* uuid, CUdevice device) {
  memcpy(uuid->bytes, uuid_bytes_of(visible_devices()[device]).data(), 16);
  return CUDA_SUCCESS;
}
API CUresult cuDeviceTotalMem(size_t* size, CUdevice device) {
  *size = memory_bytes_of(visible_devices()[device]);
  return CUDA_SUCCESS;
}
API CUresult cuMemGetInfo(size_t* free, size_t* total) {
  return (CUresult)of_runtime<int(size_t*, size_t*)>("cudaMemGetInfo")(free, total);
}

// Contexts: torch only opens a context on a device that already has one, so this must be exact.
API CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned* flags, int* is_active) {
  *flags = 0;
  *is_active = of_runtime<int(int)>("paper_has_context")(device);
  return CUDA_SUCCESS;
}
static char context;
API CUresult cuDevicePrimaryCtxRetain(CUcontext* found, CUdevice) {
  *found = (CUcontext)&context;
  return CUDA_SUCCESS;
}
API CUresult cuDevicePrimaryCtxRelease(CUdevice) { return CUDA_SUCCESS; }
API CUresult cuCtxGetCurrent(CUcontext* found) {
  *found = (CUcontext)&context;
  return CUDA_SUCCESS;
}
API CUresult cuCtxSetCurrent(CUcontext) { return CUDA_SUCCESS; }
API CUresult cuCtxPushCurrent(CUcontext) { return CUDA_SUCCESS; }
API CUresult cuCtxPopCurrent(CUcontext* found) { return cuCtxGetCurrent(found); }
API CUresult cuCtxGetDevice(CUdevice* device) {
  return (CUresult)of_runtime<int(int*)>("cudaGetDevice")(device);
}
API CUresult cuCtxGetLimit(size_t* value, CUlimit) {
  *value = 0;
  return CUDA_SUCCESS;
}
API CUresult cuCtxSetLimit(CUlimit, size_t) { return CUDA_SUCCESS; }
API CUresult cuCtxSynchronize() { return (CUresult)of_runtime<int()>("cudaDeviceSynchronize")(); }
API CUresult cuStreamSynchronize(CUstream stream) {
  return (CUresult)of_runtime<int(CUstream)>("cudaStreamSynchronize")(stream);
}

// Compiled kernels (Triton): loaded without inspection; a launch is counted and computes nothing.
static char module, function;
API CUresult cuModuleLoadData(CUmodule* found, const void*) {
  *found = (CUmodule)&module;
  return CUDA_SUCCESS;
}
API CUresult cuModuleLoad(CUmodule* found, const char*) { return cuModuleLoadData(found, nullptr); }
// torch looks up the linker functions too; only kernels compiled by NVRTC with device linking use them.
API CUresult cuLinkCreate(unsigned, CUjit_option*, void**, CUlinkState*) { return CUDA_ERROR_NOT_SUPPORTED; }
API CUresult cuLinkAddData(CUlinkState, CUjitInputType, void*, size_t, const char*, unsigned, CUjit_option*, void**) {
  return CUDA_ERROR_NOT_SUPPORTED;
}
API CUresult cuLinkComplete(CUlinkState, void**, size_t*) { return CUDA_ERROR_NOT_SUPPORTED; }
API CUresult cuModuleLoadDataEx(CUmodule* found, const void*, unsigned, CUjit_option*, void**) {
  *found = (CUmodule)&module;
  return CUDA_SUCCESS;
}
API CUresult cuModuleUnload(CUmodule) { return CUDA_SUCCESS; }
API CUresult cuModuleGetFunction(CUfunction* found, CUmodule, const char*) {
  *found = (CUfunction)&function;
  return CUDA_SUCCESS;
}
API CUresult cuFuncGetAttribute(int* value, CUfunction_attribute attribute, CUfunction) {
  switch (attribute) {
    case CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK: *value = 1024; break;
    case CU_FUNC_ATTRIBUTE_NUM_REGS: *value = 32; break;
    default: *value = 0;
  }
  return CUDA_SUCCESS;
}
API CUresult cuFuncSetAttribute(CUfunction, CUfunction_attribute, int) { return CUDA_SUCCESS; }
API CUresult cuFuncSetCacheConfig(CUfunction, CUfunc_cache) { return CUDA_SUCCESS; }
API CUresult cuOccupancyMaxActiveClusters(int* count, CUfunction, const CUlaunchConfig*) {
  *count = 1;
  return CUDA_SUCCESS;
}
API CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int* count, CUfunction, int, size_t) {
  *count = 2;
  return CUDA_SUCCESS;
}
static CUresult launch(CUstream stream) {
  of_runtime<void(CUstream)>("paper_launch")(stream);
  return CUDA_SUCCESS;
}
API CUresult cuLaunchKernel(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                            CUstream stream, void**, void**) {
  return launch(stream);
}
API CUresult cuLaunchCooperativeKernel(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                                       CUstream stream, void**) {
  return launch(stream);
}
API CUresult cuLaunchKernelEx(const CUlaunchConfig* configuration, CUfunction, void**, void**) {
  return launch(configuration->hStream);
}
API CUresult cuTensorMapEncodeTiled(CUtensorMap*, CUtensorMapDataType, cuuint32_t, void*, const cuuint64_t*,
                                    const cuuint64_t*, const cuuint32_t*, const cuuint32_t*, CUtensorMapInterleave,
                                    CUtensorMapSwizzle, CUtensorMapL2promotion, CUtensorMapFloatOOBfill) {
  return CUDA_SUCCESS;
}
API CUresult cuTensorMapEncodeIm2col(CUtensorMap*, CUtensorMapDataType, cuuint32_t, void*, const cuuint64_t*,
                                     const cuuint64_t*, const int*, const int*, cuuint32_t, cuuint32_t,
                                     const cuuint32_t*, CUtensorMapInterleave, CUtensorMapSwizzle,
                                     CUtensorMapL2promotion, CUtensorMapFloatOOBfill) {
  return CUDA_SUCCESS;
}

// NVRTC requests a table of undocumented functions. Its first number is its size in bytes: the table is empty.
API CUresult cuGetExportTable(const void** table, const CUuuid*) {
  static const uint64_t empty = sizeof empty;
  *table = &empty;
  return CUDA_SUCCESS;
}

// Triton queries whether an argument is a device pointer, and the address that kernels use.
API CUresult cuPointerGetAttribute(void* value, CUpointer_attribute attribute, CUdeviceptr address) {
  if (attribute != CU_POINTER_ATTRIBUTE_DEVICE_POINTER) return CUDA_ERROR_NOT_SUPPORTED;
  *(CUdeviceptr*)value = address;
  return CUDA_SUCCESS;
}
API CUresult cuPointerGetAttributes(unsigned, CUpointer_attribute*, void**, CUdeviceptr) {
  return CUDA_ERROR_NOT_SUPPORTED;
}
API CUresult cuGetErrorString(CUresult error, const char** text) {
  *text = of_runtime<const char*(int)>("cudaGetErrorString")(error);
  return CUDA_SUCCESS;
}
API CUresult cuGetErrorName(CUresult error, const char** text) {
  *text = of_runtime<const char*(int)>("cudaGetErrorName")(error);
  return CUDA_SUCCESS;
}
API CUresult cuGetProcAddress(const char* name, void** found, int, cuuint64_t, CUdriverProcAddressQueryResult* result) {
  static void* self = dlopen("libcuda.so.1", RTLD_NOW);
  *found = dlsym(self, (std::string(name) + "_v2").c_str());
  if (!*found) *found = dlsym(self, name);
  if (result) *result = *found ? CU_GET_PROC_ADDRESS_SUCCESS : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
  return *found ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}
