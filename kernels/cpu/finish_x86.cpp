#include "finish.h"

#if defined(__x86_64__)

#include <cpuid.h>
#include <immintrin.h>

#include "noise_x86.h"

#define GP_AVX2 __attribute__((target("avx2,f16c")))

namespace gpupipe {
namespace {

// Eight values of dtype at a time, in the arithmetic of the table: subtract, multiply, round.
struct Float32 {
  using Value = float;
  GP_AVX2 static void store(float* to, __m256 values) { _mm256_storeu_ps(to, values); }
};

struct Float16 {
  using Value = uint16_t;
  GP_AVX2 static void store(uint16_t* to, __m256 values) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm256_cvtps_ph(values, _MM_FROUND_TO_NEAREST_INT));
  }
};

struct Bfloat16 {
  using Value = uint16_t;
  // The upper half, rounded to nearest, ties to even; values are finite.
  GP_AVX2 static void store(uint16_t* to, __m256 values) {
    const __m256i bits = _mm256_castps_si256(values);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    const __m256i up = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7FFF)));
    const __m256i halves = _mm256_srli_epi32(up, 16);
    const __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(halves, halves), 0xD8);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm256_castsi256_si128(packed));
  }
};

GP_AVX2 inline __m256 normalized(__m128i eight_bytes, __m256 offset, __m256 scale) {
  return _mm256_mul_ps(_mm256_sub_ps(_mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(eight_bytes)), offset), scale);
}

GP_AVX2 inline __m128i load16(const uint8_t* at) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(at)); }

GP_AVX2 inline __m128i load8(const uint8_t* at) { return _mm_loadl_epi64(reinterpret_cast<const __m128i*>(at)); }

// Where the bytes of each channel lie among 48 bytes of 16 pixels: for each block of 16 bytes, which of them.
struct ChannelPicks {
  alignas(16) int8_t at[3][3][16];
};

constexpr ChannelPicks channel_picks() {
  ChannelPicks picks{};
  for (int channel = 0; channel < 3; ++channel) {
    for (int block = 0; block < 3; ++block) {
      for (int pixel = 0; pixel < 16; ++pixel) {
        const int at = pixel * 3 + channel - block * 16;
        picks.at[channel][block][pixel] = static_cast<int8_t>(at >= 0 && at < 16 ? at : -1);
      }
    }
  }
  return picks;
}

constexpr ChannelPicks kPicks = channel_picks();

struct ChannelPick {
  __m128i from[3];
};

GP_AVX2 inline __m128i pick(int channel, int block) {
  return _mm_load_si128(reinterpret_cast<const __m128i*>(kPicks.at[channel][block]));
}

GP_AVX2 inline ChannelPick channel_pick(int channel) {
  return {{pick(channel, 0), pick(channel, 1), pick(channel, 2)}};
}

// The bytes of one channel of 16 pixels.
GP_AVX2 inline __m128i channel(const __m128i blocks[3], const ChannelPick& pick) {
  return _mm_or_si128(
      _mm_or_si128(_mm_shuffle_epi8(blocks[0], pick.from[0]), _mm_shuffle_epi8(blocks[1], pick.from[1])),
      _mm_shuffle_epi8(blocks[2], pick.from[2]));
}

GP_AVX2 void byte_planes(const FinishSpec& spec, const uint8_t* in, size_t pixels, uint8_t* out) {
  const ChannelPick picks[3] = {channel_pick(0), channel_pick(1), channel_pick(2)};
  const size_t plane = plane_of(spec, pixels);
  size_t p = 0;
  for (; p + 16 <= pixels; p += 16) {
    const __m128i blocks[3] = {load16(in + p * 3), load16(in + p * 3 + 16), load16(in + p * 3 + 32)};
    for (size_t c = 0; c < 3; ++c)
      _mm_storeu_si128(reinterpret_cast<__m128i*>(out + c * plane + p), channel(blocks, picks[c]));
  }
  finish_rest(spec, in, p, pixels, out);
}

// The image with which another one is mixed, and the weights of both.
struct Other {
  const uint8_t* in;
  float weight, rest;
};

GP_AVX2 inline __m256 blend(const Other& other, __m256 own, __m256 others) {
  return _mm256_add_ps(_mm256_mul_ps(_mm256_set1_ps(other.weight), own),
                       _mm256_mul_ps(_mm256_set1_ps(other.rest), others));
}

template <bool kMixed>
GP_AVX2 inline void rest(const FinishSpec& spec, const Other& other, const uint8_t* in, size_t begin, size_t pixels,
                         void* out) {
  if (kMixed) return mixed_rest(spec, other.weight, in, other.in, begin, pixels, out);
  finish_rest(spec, in, begin, pixels, out);
}

template <typename D, bool kMixed>
GP_AVX2 void planes(const FinishSpec& spec, const Other& other, const uint8_t* in, size_t pixels,
                    typename D::Value* out) {
  const ChannelPick picks[3] = {channel_pick(0), channel_pick(1), channel_pick(2)};
  const size_t plane = plane_of(spec, pixels);
  size_t p = 0;
  for (; p + 16 <= pixels; p += 16) {
    const __m128i blocks[3] = {load16(in + p * 3), load16(in + p * 3 + 16), load16(in + p * 3 + 32)};
    const uint8_t* at = (kMixed ? other.in : in) + p * 3;
    const __m128i others[3] = {load16(at), load16(at + 16), load16(at + 32)};
    for (int c = 0; c < 3; ++c) {
      const __m256 offset = _mm256_broadcast_ss(spec.offset + c), scale = _mm256_broadcast_ss(spec.scale + c);
      const __m128i bytes = channel(blocks, picks[c]);
      __m256 first = normalized(bytes, offset, scale);
      __m256 second = normalized(_mm_srli_si128(bytes, 8), offset, scale);
      if (kMixed) {
        const __m128i mixed = channel(others, picks[c]);
        first = blend(other, first, normalized(mixed, offset, scale));
        second = blend(other, second, normalized(_mm_srli_si128(mixed, 8), offset, scale));
      }
      typename D::Value* to = out + static_cast<size_t>(c) * plane + p;
      D::store(to, first);
      D::store(to + 8, second);
    }
  }
  rest<kMixed>(spec, other, in, p, pixels, out);
}

// Interleaved numbers: the constants repeat every 24, three vectors.
template <typename D, bool kMixed>
GP_AVX2 void interleaved(const FinishSpec& spec, const Other& other, const uint8_t* in, size_t pixels,
                         typename D::Value* out) {
  float offsets[24], scales[24];
  for (int i = 0; i < 24; ++i) {
    offsets[i] = spec.offset[i % 3];
    scales[i] = spec.scale[i % 3];
  }
  size_t p = 0;
  for (; p + 8 <= pixels; p += 8) {
    for (size_t v = 0; v < 3; ++v) {
      const size_t at = p * 3 + v * 8;
      const __m256 offset = _mm256_loadu_ps(offsets + v * 8), scale = _mm256_loadu_ps(scales + v * 8);
      __m256 values = normalized(load8(in + at), offset, scale);
      if (kMixed) values = blend(other, values, normalized(load8(other.in + at), offset, scale));
      D::store(out + at, values);
    }
  }
  rest<kMixed>(spec, other, in, p, pixels, out);
}

template <typename D, bool kMixed>
void finish_as(const FinishSpec& spec, const Other& other, const uint8_t* in, size_t pixels, void* out) {
  auto* to = static_cast<typename D::Value*>(out);
  if (spec.channels_last) {
    interleaved<D, kMixed>(spec, other, in, pixels, to);
  } else {
    planes<D, kMixed>(spec, other, in, pixels, to);
  }
}

void finish_avx2(const FinishSpec& spec, const uint8_t* in, size_t pixels, void* out) {
  const Other none{};
  switch (spec.dtype) {
    case Dtype::float32: return finish_as<Float32, false>(spec, none, in, pixels, out);
    case Dtype::float16: return finish_as<Float16, false>(spec, none, in, pixels, out);
    case Dtype::bfloat16: return finish_as<Bfloat16, false>(spec, none, in, pixels, out);
    case Dtype::uint8:
      if (spec.channels_last) return finish_rest(spec, in, 0, pixels, out);
      return byte_planes(spec, in, pixels, static_cast<uint8_t*>(out));
  }
}

void mixed_avx2(const FinishSpec& spec, float weight, const uint8_t* own, const uint8_t* other, size_t pixels,
                void* out) {
  const Other mixed = {other, weight, 1 - weight};
  switch (spec.dtype) {
    case Dtype::float32: return finish_as<Float32, true>(spec, mixed, own, pixels, out);
    case Dtype::float16: return finish_as<Float16, true>(spec, mixed, own, pixels, out);
    case Dtype::bfloat16: return finish_as<Bfloat16, true>(spec, mixed, own, pixels, out);
    case Dtype::uint8: return;
  }
}

template <typename D>
GP_AVX2 void store_as(Dtype dtype, const float* numbers, size_t count, void* out) {
  size_t i = 0;
  for (; i + 8 <= count; i += 8) D::store(static_cast<typename D::Value*>(out) + i, _mm256_loadu_ps(numbers + i));
  store_rest(dtype, numbers, i, count, out);
}

void store_avx2(Dtype dtype, const float* numbers, size_t count, void* out) {
  switch (dtype) {
    case Dtype::float32: return store_as<Float32>(dtype, numbers, count, out);
    case Dtype::float16: return store_as<Float16>(dtype, numbers, count, out);
    case Dtype::bfloat16: return store_as<Bfloat16>(dtype, numbers, count, out);
    case Dtype::uint8: return;
  }
}

GP_AVX2 void noise_avx2(const uint32_t key[2], uint32_t first, float* out) { noise_run_avx2(key, first, out); }

constexpr FinishKernels kAvx2Finish = {finish_avx2, mixed_avx2, store_avx2, noise_avx2};

// __builtin_cpu_supports does not know this name before GCC 11 and in older clang.
bool has_f16c() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & bit_F16C) != 0;
}

}  // namespace

const FinishKernels* avx2_finish() { return __builtin_cpu_supports("avx2") && has_f16c() ? &kAvx2Finish : nullptr; }

}  // namespace gpupipe

#else

namespace gpupipe {
const FinishKernels* avx2_finish() { return nullptr; }
}  // namespace gpupipe

#endif
