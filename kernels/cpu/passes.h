// The two passes of a resize, in variants for what the CPU can do. All give the same bits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "axis.h"

namespace gpupipe {

// Bytes that a pass may read beyond the last pixel of a row, and write beyond the last pixel of the horizontal pass.
constexpr size_t kRowSlack = 128;

// A line of the nearest cache, of which a load should not take two.
union alignas(64) Line {
  uint8_t bytes[64];
  int16_t words[32];
  int32_t places[16];
};

// The weights of an axis in the form that a variant's horizontal pass reads.
struct Prepared {
  int groups = 0;
  std::vector<Line> lines;
};

struct Passes {
  const char* name;
  void (*prepare)(const Axis& axis, Prepared& prepared);
  // `rows` rows of 4-byte pixels, the first being source pixel axis.low, become rows of axis.out 3-byte pixels. Both
  // have kRowSlack bytes after each row.
  void (*horizontal)(const Axis& axis, const Prepared& prepared, const uint8_t* in, size_t in_stride, int rows,
                     uint8_t* out, size_t out_stride);
  // Rows of `bytes` bytes, the first being source row axis.low, become axis.out rows without slack.
  void (*vertical)(const Axis& axis, const uint8_t* in, size_t in_stride, size_t bytes, uint8_t* out,
                   size_t out_stride);
};

extern const Passes kPortablePasses;
// Null where the compiler does not target x86-64.
const Passes* avx2_passes();
const Passes* avx512_passes();

// The best that this CPU has and that gives the portable code's bits; chosen at the first call.
const Passes& best_passes();
// By name; null where this CPU lacks it.
const Passes* find_passes(const char* name);

}  // namespace gpupipe
