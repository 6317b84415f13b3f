#include <cstring>

#include "augment.h"

#if defined(__x86_64__)

#define GP_TARGET __attribute__((target("avx2")))

namespace gpupipe {
namespace {
#include "augment_loops.h"
}  // namespace

const AugmentLoops* avx2_augment() { return __builtin_cpu_supports("avx2") ? &kLoops : nullptr; }

}  // namespace gpupipe

#else

namespace gpupipe {
const AugmentLoops* avx2_augment() { return nullptr; }
}  // namespace gpupipe

#endif
