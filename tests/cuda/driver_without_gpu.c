// A CUDA driver for machines without a GPU, in so far as cuDNN needs one to compile a plan for a GPU
// that is described to it: kernels can be loaded, nothing can run. The functions that cuDNN looks
// up; 34 is CUDA_ERROR_STUB_LIBRARY.
enum { stub_library = 34 };
static int loaded(void** handle) {
  *handle = (void*)16;
  return 0;
}

int cuLibraryLoadData(void** handle) { return loaded(handle); }
int cuLibraryLoadFromFile(void** handle) { return loaded(handle); }
int cuLibraryGetKernel(void** handle) { return loaded(handle); }
int cuModuleGetFunction(void** handle) { return loaded(handle); }
int cuModuleLoadData(void** handle) { return loaded(handle); }
int cuModuleLoadDataEx(void** handle) { return loaded(handle); }
int cuModuleLoadFatBinary(void** handle) { return loaded(handle); }

int cuFuncGetAttribute(void) { return 0; }
int cuFuncSetAttribute(void) { return 0; }
int cuKernelGetAttribute(void) { return 0; }
int cuKernelSetAttribute(void) { return 0; }
int cuLibraryUnload(void) { return 0; }
int cuModuleGetGlobal_v2(void) { return 0; }
int cuModuleUnload(void) { return 0; }

int cuCtxGetCurrent(void) { return stub_library; }
int cuCtxGetDevice(void) { return stub_library; }
int cuCtxGetLimit(void) { return stub_library; }
int cuCtxPopCurrent(void) { return stub_library; }
int cuCtxPushCurrent(void) { return stub_library; }
int cuDeviceGet(void) { return stub_library; }
int cuDeviceGetAttribute(void) { return stub_library; }
int cuDeviceGetCount(void) { return stub_library; }
int cuDevicePrimaryCtxRelease(void) { return stub_library; }
int cuDevicePrimaryCtxReset(void) { return stub_library; }
int cuDevicePrimaryCtxRetain(void) { return stub_library; }
int cuDriverGetVersion(void) { return stub_library; }
int cuGetErrorName(void) { return stub_library; }
int cuGetErrorString(void) { return stub_library; }
int cuInit(void) { return stub_library; }
int cuLaunchCooperativeKernel(void) { return stub_library; }
int cuLaunchKernel(void) { return stub_library; }
int cuLaunchKernelEx(void) { return stub_library; }
int cuLinkAddData(void) { return stub_library; }
int cuLinkAddData_v2(void) { return stub_library; }
int cuLinkAddFile_v2(void) { return stub_library; }
int cuLinkComplete(void) { return stub_library; }
int cuLinkCreate(void) { return stub_library; }
int cuLinkCreate_v2(void) { return stub_library; }
int cuLinkDestroy(void) { return stub_library; }
int cuMemcpyDtoH_v2(void) { return stub_library; }
int cuOccupancyMaxActiveBlocksPerMultiprocessor(void) { return stub_library; }
int cuOccupancyMaxPotentialClusterSize(void) { return stub_library; }
int cuStreamGetCtx(void) { return stub_library; }
int cuStreamSynchronize(void) { return stub_library; }
int cuTensorMapEncodeTiled(void) { return stub_library; }
