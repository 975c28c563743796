// Compiles the file that includes it once for each instruction set of core/isa.h. The file says before
//
//   #undef HWY_TARGET_INCLUDE
//   #define HWY_TARGET_INCLUDE "its/own/path.cpp"
//   #include "core/each_isa.h"
//   HWY_BEFORE_NAMESPACE();
//   namespace its_namespace::HWY_NAMESPACE { void loop(...) {...} }
//   HWY_AFTER_NAMESPACE();
//   #if HWY_ONCE
//     TESSERA_FOR_ISA(loop)(...);    // in its_namespace: the one for this machine
//   #endif
//
// Plain loops, left to the compiler, mostly: Highway gives the names, the attributes and the repetition, and its inline operations where a
// compiler does not see the right instruction. What would have to be linked (its own dispatch) is not used: whoever links us
// would have to link it too. No include guard: it works once per pass.

#ifndef HWY_DISABLED_TARGETS
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SSE4 | HWY_AVX3_DL | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128)
#endif

#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "core/isa.h"

#undef TESSERA_FOR_ISA
#define TESSERA_FOR_ISA(function) ::tessera::core::for_isa(&HWY_STATIC_DISPATCH(function), TESSERA_AVX2(function), TESSERA_AVX512(function))

#undef TESSERA_AVX2
#undef TESSERA_AVX512
#if HWY_TARGETS & HWY_AVX2
#define TESSERA_AVX2(function) &N_AVX2::function
#else
#define TESSERA_AVX2(function) static_cast<decltype(&HWY_STATIC_DISPATCH(function))>(nullptr)
#endif
#if HWY_TARGETS & HWY_AVX3
#define TESSERA_AVX512(function) &N_AVX3::function
#else
#define TESSERA_AVX512(function) static_cast<decltype(&HWY_STATIC_DISPATCH(function))>(nullptr)
#endif
