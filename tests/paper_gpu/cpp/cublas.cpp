// cuBLAS and cuBLASLt. Only functions with results are here: build.py generates the other functions that torch
// links against. Those that compute call paper_library_call, which counts one launch; dispatch.cpp computes.
// NVIDIA's headers need libcu++, which none of torch's packages contains, so handles are plain pointers here.
#include "runtime.h"

using namespace paper;

// Streams of cuBLAS handles are ignored: on the paper GPU a library call has no duration.
API int paper_library_call() {
  count_library_launch();
  return 0;
}

API int cublasCreate_v2(void** handle) {
  open_context();
  *handle = calloc(1, 64);
  return 0;
}
API int cublasDestroy_v2(void* handle) {
  free(handle);
  return 0;
}
API int cublasGetMathMode(void*, int* mode) {
  *mode = 0;  // CUBLAS_DEFAULT_MATH
  return 0;
}
API int cublasGetPointerMode_v2(void*, int* mode) {
  *mode = 0;  // CUBLAS_POINTER_MODE_HOST
  return 0;
}

API size_t cublasLtGetVersion() { return 130000; }
API int cublasLtMatmulDescCreate(void** descriptor, int, int) { return cublasCreate_v2(descriptor); }
API int cublasLtMatmulDescDestroy(void* descriptor) { return cublasDestroy_v2(descriptor); }
API int cublasLtMatmulPreferenceCreate(void** preference) { return cublasCreate_v2(preference); }
API int cublasLtMatmulPreferenceDestroy(void* preference) { return cublasDestroy_v2(preference); }
API int cublasLtMatrixLayoutCreate(void** layout, int, uint64_t, uint64_t, int64_t) { return cublasCreate_v2(layout); }
API int cublasLtMatrixLayoutDestroy(void* layout) { return cublasDestroy_v2(layout); }

// cublasLtMatmulHeuristicResult_t
struct HeuristicResult {
  uint64_t algorithm[8];
  size_t workspace_bytes;
  int state;
  float waves;
  int reserved[4];
};
API int cublasLtMatmulAlgoGetHeuristic(void*, void*, void*, void*, void*, void*, void*, int, HeuristicResult* results, int* count) {
  *results = {};
  *count = 1;
  return 0;
}
