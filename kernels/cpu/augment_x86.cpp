#include <cstring>

#include "augment.h"

#if defined(__x86_64__)

#include <immintrin.h>

#include "noise_x86.h"

#define GP_NOISE noise_run_avx2
#define GP_WORDS noise_words_avx2
#define GP_TARGET __attribute__((target("avx2")))
#define GP_VECTOR 32

namespace gpupipe {
namespace {

using Pixel = __m128;

// Three channels and one more byte.
GP_TARGET inline Pixel load_pixel(const uint8_t* at) {
  int32_t bytes;
  std::memcpy(&bytes, at, 4);
  return _mm_cvtepi32_ps(_mm_cvtepu8_epi32(_mm_cvtsi32_si128(bytes)));
}

// Rounded, half to even, and cut to 0 to 255.
GP_TARGET inline int32_t packed(__m128 exact) {
  const __m128i words = _mm_packs_epi32(_mm_cvtps_epi32(exact), _mm_setzero_si128());
  return _mm_cvtsi128_si32(_mm_packus_epi16(words, words));
}

GP_TARGET void interpolate(const uint8_t* source, const Shares& from, int count, const float* fill, uint8_t* out) {
  const __m128 color = fill != nullptr ? _mm_setr_ps(fill[0], fill[1], fill[2], 0.0f) : _mm_setzero_ps();
  for (int i = 0; i < count; ++i) {
    const uint8_t *top = source + from.top[i], *bottom = source + from.bottom[i];
    __m128 total = _mm_mul_ps(load_pixel(top), _mm_broadcast_ss(&from.share[0][i]));
    total = _mm_add_ps(total, _mm_mul_ps(load_pixel(top + 3), _mm_broadcast_ss(&from.share[1][i])));
    total = _mm_add_ps(total, _mm_mul_ps(load_pixel(bottom), _mm_broadcast_ss(&from.share[2][i])));
    total = _mm_add_ps(total, _mm_mul_ps(load_pixel(bottom + 3), _mm_broadcast_ss(&from.share[3][i])));
    if (fill != nullptr) {
      total = _mm_add_ps(_mm_mul_ps(_mm_sub_ps(total, color), _mm_broadcast_ss(&from.covered[i])), color);
    }
    const int32_t pixel = packed(total);
    std::memcpy(out + i * 3, &pixel, i + 1 < count ? 4 : 3);  // the next one covers the fourth byte
  }
}

#include "augment_loops.h"
}  // namespace

const AugmentLoops* avx2_augment() { return __builtin_cpu_supports("avx2") ? &kLoops : nullptr; }

}  // namespace gpupipe

#else

namespace gpupipe {
const AugmentLoops* avx2_augment() { return nullptr; }
}  // namespace gpupipe

#endif
