// The noise of kernels/erase_mix.py: standard normal numbers, by Box and Muller's transform of Philox's words.
//
// Written in operations that IEEE 754 defines to the bit, with series in place of the C library's functions, so that the
// compiler makes vectors of it and every variant gives the same bits.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#include "philox.h"

namespace gpupipe {

// Pixels that are made at once.
constexpr int kNoiseRun = 32;

GP_INLINE uint32_t bits_of(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, 4);
  return bits;
}

GP_INLINE float float_of(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, 4);
  return value;
}

// Strictly between 0 and 1: 23 bits and a half.
GP_INLINE float uniform(uint32_t word) {
  return (static_cast<float>(static_cast<int32_t>(word >> 9)) + 0.5f) * 1.1920928955078125e-07f;  // 2^-23
}

// With u = 2^e m, m from sqrt(1/2) to sqrt(2): ln(m) = 2 artanh(s), s = (m - 1) / (m + 1), whose series up to the ninth
// power is right to 1e-9.
GP_INLINE float logarithm(float u) {
  const uint32_t root = 0x3F3504F3;  // the bits of sqrt(1/2)
  const uint32_t bits = bits_of(u) + (0x3F800000 - root);
  const float exponent = static_cast<float>(static_cast<int32_t>(bits >> 23) - 127);
  const float m = float_of((bits & 0x007FFFFF) + root);
  const float s = (m - 1) / (m + 1), z = s * s;
  const float series = (((1 / 9.0f * z + 1 / 7.0f) * z + 1 / 5.0f) * z + 1 / 3.0f) * z + 1;
  return 2 * s * series + exponent * 0.693147181f;
}

GP_INLINE float radius(float u) { return std::sqrt(-2 * logarithm(u)); }

struct Direction {
  float cosine, sine;
};

// Of `turns` times 2 pi: the series for the nearest quarter of a turn, which is at most pi / 4 away.
GP_INLINE Direction direction(float turns) {
  const int32_t quarter = static_cast<int32_t>(4 * turns + 0.5f);
  const float x = (turns - 0.25f * static_cast<float>(quarter)) * 6.28318531f, z = x * x;
  const float sine = ((((1 / 362880.0f * z - 1 / 5040.0f) * z + 1 / 120.0f) * z - 1 / 6.0f) * z + 1) * x;
  const float cosine = (((1 / 40320.0f * z - 1 / 720.0f) * z + 1 / 24.0f) * z - 0.5f) * z + 1;
  // Without branches: odd quarters swap the two, and each has two quarters where it is negative.
  const uint32_t quarters = static_cast<uint32_t>(quarter), odd = 0u - (quarters & 1);
  const uint32_t difference = (bits_of(cosine) ^ bits_of(sine)) & odd;
  return {float_of((bits_of(cosine) ^ difference) ^ ((quarters + 1) & 2) << 30),
          float_of((bits_of(sine) ^ difference) ^ (quarters & 2) << 30)};
}

// Philox's words for the pixels from `first` on: four planes of kNoiseRun.
GP_INLINE void noise_words(const uint32_t key[2], uint32_t first, uint32_t* __restrict out) {
  const uint32_t key0 = key[0], key1 = key[1];
  for (int i = 0; i < kNoiseRun; ++i) {
    const Words words = philox({{first + static_cast<uint32_t>(i), 0, 0, 0}}, key0, key1);
    for (int w = 0; w < 4; ++w) out[i + w * kNoiseRun] = words.word[w];
  }
}

// What they become: three planes.
GP_INLINE void noise_of_words(const uint32_t* __restrict words, float* __restrict out) {
  for (int i = 0; i < kNoiseRun; ++i) {
    const float one = radius(uniform(words[i])), other = radius(uniform(words[i + 2 * kNoiseRun]));
    const Direction both = direction(uniform(words[i + kNoiseRun])), last = direction(uniform(words[i + 3 * kNoiseRun]));
    out[i] = one * both.cosine;
    out[i + kNoiseRun] = one * both.sine;
    out[i + 2 * kNoiseRun] = other * last.cosine;
  }
}

// Noise of the pixels from `first` on: three planes of kNoiseRun.
GP_INLINE void noise_run(const uint32_t key[2], uint32_t first, float* out) {
  uint32_t words[4 * kNoiseRun];
  noise_words(key, first, words);
  noise_of_words(words, out);
}

}  // namespace gpupipe
