#include <cmath>
#include <cstring>

#include "augment.h"
#include "noise.h"

#define GP_NOISE noise_run
#define GP_WORDS noise_words
#define GP_TARGET
#define GP_VECTOR 16

namespace gpupipe {
namespace {

typedef float Pixel __attribute__((vector_size(16)));

inline Pixel load_pixel(const uint8_t* at) {
  return Pixel{static_cast<float>(at[0]), static_cast<float>(at[1]), static_cast<float>(at[2]), 0.0f};
}

void interpolate(const uint8_t* source, const Shares& from, int count, const float* fill, uint8_t* out) {
  for (int i = 0; i < count; ++i) {
    const uint8_t *top = source + from.top[i], *bottom = source + from.bottom[i];
    for (int c = 0; c < 3; ++c) {
      float total = top[c] * from.share[0][i] + top[c + 3] * from.share[1][i];
      total += bottom[c] * from.share[2][i];
      total += bottom[c + 3] * from.share[3][i];
      if (fill != nullptr) total = (total - fill[c]) * from.covered[i] + fill[c];
      const float cut = total > 0.0f ? (total < 255.0f ? total : 255.0f) : 0.0f;
      out[i * 3 + c] = static_cast<uint8_t>(std::nearbyint(cut));
    }
  }
}

size_t gray_blocks(uint8_t*, size_t) { return 0; }

size_t reordered_blocks(uint8_t*, size_t, const uint8_t*) { return 0; }

#include "augment_loops.h"
}  // namespace

const AugmentLoops& portable_augment() { return kLoops; }

}  // namespace gpupipe
