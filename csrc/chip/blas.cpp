#include "chip/blas.h"

#include <dlfcn.h>

namespace loom::chip {

namespace {

void* find(const char* name) {
  for (const char* library : {"libtorch_cpu.so", "libtorch_cpu.dylib"})
    if (void* handle = ::dlopen(library, RTLD_LAZY | RTLD_NOLOAD)) {
      void* symbol = ::dlsym(handle, name);
      ::dlclose(handle);  // drops the reference taken here, the library stays
      if (symbol) return symbol;
    }
  return ::dlsym(RTLD_DEFAULT, name);
}

}  // namespace

Sgemm find_sgemm() { return reinterpret_cast<Sgemm>(find("sgemm_")); }

void single_threaded_blas() {
  // Both are settings of the calling thread only.
  if (void* omp = find("omp_set_num_threads")) reinterpret_cast<void (*)(int)>(omp)(1);
  if (void* mkl = find("MKL_Set_Num_Threads_Local")) reinterpret_cast<int (*)(int)>(mkl)(1);
}

}  // namespace loom::chip
