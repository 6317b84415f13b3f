// The loops of AugmentLoops as plain C++. Each variant includes this once in a namespace of its own, with GP_TARGET
// naming the instructions that the compiler may use, GP_VECTOR the bytes of a register, GP_NOISE and GP_WORDS the
// `noise_run` and `noise_words` for them, and defined: `interpolate`; `Pixel`, a vector of three levels and one more
// number, with `load_pixel`; and `gray_blocks` and `reordered_blocks`, which do the first pixels, as many as they say.

// 0.2989 R + 0.587 G + 0.114 B, torchvision's weights, cut to a whole number.
GP_TARGET inline float gray_of(float red, float green, float blue) {
  return static_cast<float>(static_cast<int32_t>((red * 0.2989f + green * 0.587f) + blue * 0.114f));
}

// Cut to 0 to `high`. Of numbers that are not negative the larger one has the larger bits, and compilers know the
// vector instruction for the larger of two whole numbers.
GP_TARGET inline float between_0_and(float high, float exact) {
  int32_t bits, most;
  std::memcpy(&bits, &exact, 4);
  std::memcpy(&most, &high, 4);
  bits = bits > 0 ? bits : 0;
  bits = bits < most ? bits : most;
  std::memcpy(&exact, &bits, 4);
  return exact;
}

GP_TARGET inline float cut(float exact) { return between_0_and(255.0f, exact); }

GP_TARGET inline uint8_t level(float exact) { return static_cast<uint8_t>(static_cast<int32_t>(cut(exact))); }

// Half to even, for numbers below 2^22: adding 1.5 * 2^23 leaves no bits for a fraction.
GP_TARGET inline float rounded(float exact) { return (exact + 12582912.0f) - 12582912.0f; }

// yes ? some : other, without a branch, which compilers would make of a chain of choices.
GP_TARGET inline float pick(bool yes, float some, float other) {
  const uint32_t mask = 0u - static_cast<uint32_t>(yes);
  uint32_t first, second;
  std::memcpy(&first, &some, 4);
  std::memcpy(&second, &other, 4);
  const uint32_t bits = (first & mask) | (second & ~mask);
  float picked;
  std::memcpy(&picked, &bits, 4);
  return picked;
}

// Downwards, for numbers that int32 holds; without SSE4.1 `floor` is a call.
GP_TARGET inline float floored(float exact) {
  const float whole = static_cast<float>(static_cast<int32_t>(exact));
  return whole > exact ? whole - 1.0f : whole;
}

// A coordinate as near to the image as an int needs; far outside stays outside, and so does what is no number.
GP_TARGET inline float near(float coordinate) {
  const float low = coordinate > -2.0f ? coordinate : -2.0f;
  return low < 2.0f * kLongestSide ? low : 2.0f * kLongestSide;
}

GP_TARGET int64_t gray_sum(const uint8_t* image, size_t pixels) {
  int64_t sum = 0;
  for (size_t p = 0; p < pixels; p += kChunk) {
    const size_t count = pixels - p < kChunk ? pixels - p : kChunk;
    const uint8_t* at = image + p * 3;
    for (size_t line = 0; line < kChunk * 3; line += 64) __builtin_prefetch(at + kAhead + line);
    int32_t some = 0;
    for (size_t i = 0; i < count; ++i) some += static_cast<int32_t>(gray_of(at[i * 3], at[i * 3 + 1], at[i * 3 + 2]));
    sum += some;
  }
  return sum;
}

GP_TARGET void extremes(const uint8_t* image, size_t pixels, uint8_t low[3], uint8_t high[3]) {
  constexpr size_t kBlock = 96;  // a multiple of 3 and of a vector
  uint8_t lows[kBlock], highs[kBlock];
  for (size_t i = 0; i < kBlock; ++i) lows[i] = 255, highs[i] = 0;
  const size_t bytes = pixels * 3;
  size_t at = 0;
  for (; at + kBlock <= bytes; at += kBlock) {
    for (size_t i = 0; i < kBlock; ++i) {
      const uint8_t value = image[at + i];
      lows[i] = value < lows[i] ? value : lows[i];
      highs[i] = value > highs[i] ? value : highs[i];
    }
  }
  for (; at < bytes; ++at) {
    const uint8_t value = image[at];
    if (value < lows[at % 3]) lows[at % 3] = value;
    if (value > highs[at % 3]) highs[at % 3] = value;
  }
  for (int c = 0; c < 3; ++c) {
    low[c] = 255, high[c] = 0;
    for (size_t i = static_cast<size_t>(c); i < kBlock; i += 3) {
      if (lows[i] < low[c]) low[c] = lows[i];
      if (highs[i] > high[c]) high[c] = highs[i];
    }
  }
}

GP_TARGET void saturation(uint8_t* image, size_t pixels, float factor) {
  const float rest = 1.0f - factor;
  for (size_t p = 0; p < pixels; ++p) {
    uint8_t* at = image + p * 3;
    const float red = at[0], green = at[1], blue = at[2];
    const float part = gray_of(red, green, blue) * rest;
    at[0] = level(red * factor + part);
    at[1] = level(green * factor + part);
    at[2] = level(blue * factor + part);
  }
}

GP_TARGET void grayscale(uint8_t* image, size_t pixels) {
  for (size_t p = gray_blocks(image, pixels); p < pixels; ++p) {
    uint8_t* at = image + p * 3;
    at[0] = at[1] = at[2] = static_cast<uint8_t>(static_cast<int32_t>(gray_of(at[0], at[1], at[2])));
  }
}

// A level of 0 to 1.
GP_TARGET inline uint8_t of_unit(float exact) { return static_cast<uint8_t>(static_cast<int32_t>(exact * 255.999f)); }

GP_TARGET inline float unit(float exact) { return between_0_and(1.0f, exact); }

GP_TARGET void hue(uint8_t* image, size_t pixels, float turn) {
  for (size_t p = 0; p < pixels; ++p) {
    uint8_t* at = image + p * 3;
    const float red = at[0] / 255.0f, green = at[1] / 255.0f, blue = at[2] / 255.0f;
    const float more = red > green ? red : green, less = red > green ? green : red;
    const float high = more > blue ? more : blue, low = less < blue ? less : blue;
    const float spread = high - low;
    const bool gray = spread == 0.0f;
    const float divisor = pick(gray, 1.0f, spread);
    const float from_red = (high - red) / divisor, from_green = (high - green) / divisor,
                from_blue = (high - blue) / divisor;
    const float sector = pick(high == red, from_blue - from_green,
                              pick(high == green, (from_red + 2.0f) - from_blue, (from_green + 4.0f) - from_red));
    const float angle = sector * (1.0f / 6.0f) + 1.0f;
    const float turned = (angle - floored(angle)) + turn;
    const float sixth = (turned - floored(turned)) * 6.0f;
    const float saturated = spread / pick(gray, 1.0f, high);
    const float whole = floored(sixth);
    const float part = saturated * (sixth - whole), rest = 1.0f - saturated;
    const float falling = unit((1.0f - part) * high), rising = unit((part + rest) * high), least = unit(rest * high);
    const int32_t exact = static_cast<int32_t>(whole), k = exact == 6 ? 0 : exact;  // 6 where the hue is 1.0
    at[0] = of_unit(pick((k == 0) | (k == 5), high, pick(k == 1, falling, pick(k == 4, rising, least))));
    at[1] = of_unit(pick((k == 1) | (k == 2), high, pick(k == 3, falling, pick(k == 0, rising, least))));
    at[2] = of_unit(pick((k == 3) | (k == 4), high, pick(k == 5, falling, pick(k == 2, rising, least))));
  }
}

// whole * 4096 / by, rounded; 0 for none.
GP_TARGET inline int32_t parts(int32_t whole, int32_t by) {
  const float some = rounded(static_cast<float>(whole * 4096) / static_cast<float>(by > 0 ? by : 1));
  return by > 0 ? static_cast<int32_t>(some) : 0;
}

// Cut to whole levels, in parts of 255.
GP_TARGET inline float whole_unit(float exact) { return floored(cut(exact)) * (1.0f / 255.0f); }

GP_TARGET void hsv(uint8_t* image, size_t pixels, float turn, float saturation, float value) {
  for (size_t p = 0; p < pixels; ++p) {
    uint8_t* at = image + p * 3;
    const int32_t red = at[0], green = at[1], blue = at[2];
    const int32_t more = red > green ? red : green, less = red > green ? green : red;
    const int32_t top = more > blue ? more : blue, spread = top - (less < blue ? less : blue);
    const int32_t strength = (spread * parts(255, top) + 2048) >> 12;
    const int32_t other = top == green ? blue - red + 2 * spread : red - green + 4 * spread;
    const int32_t hue = ((top == red ? green - blue : other) * parts(30, spread) + 2048) >> 12;
    const float turned = static_cast<float>(hue < 0 ? hue + 180 : hue) + turn;
    const float sixth = floored(turned - floored(turned / 180.0f) * 180.0f) * (1.0f / 30.0f);
    const float whole = floored(sixth), part = pick(whole < 6.0f, sixth - whole, 0.0f);
    const int32_t exact = static_cast<int32_t>(whole), k = exact >= 6 ? 0 : exact;
    const float high = whole_unit(static_cast<float>(top) * value);
    const float strong = whole_unit(static_cast<float>(strength) * saturation);
    const float least = high * (1.0f - strong), falling = high * (1.0f - strong * part),
                rising = high * (1.0f - strong * (1.0f - part));
    at[0] = level(255.0f * pick((k == 0) | (k == 5), high, pick(k == 1, falling, pick(k == 4, rising, least))));
    at[1] = level(255.0f * pick((k == 1) | (k == 2), high, pick(k == 3, falling, pick(k == 0, rising, least))));
    at[2] = level(255.0f * pick((k == 3) | (k == 4), high, pick(k == 5, falling, pick(k == 2, rising, least))));
  }
}

GP_TARGET void add_share(const uint8_t* image, size_t bytes, float share, bool first, float* total) {
  if (first) {
    for (size_t i = 0; i < bytes; ++i) total[i] = image[i] * share;
  } else {
    for (size_t i = 0; i < bytes; ++i) total[i] += image[i] * share;
  }
}

GP_TARGET void channels(uint8_t* image, size_t pixels, int order) {
  static const uint8_t kOrders[6][3] = {{0, 1, 2}, {0, 2, 1}, {1, 0, 2}, {1, 2, 0}, {2, 0, 1}, {2, 1, 0}};
  const uint8_t* from = kOrders[order];
  for (size_t p = reordered_blocks(image, pixels, from); p < pixels; ++p) {
    uint8_t* at = image + p * 3;
    const uint8_t red = at[from[0]], green = at[from[1]], blue = at[from[2]];
    at[0] = red, at[1] = green, at[2] = blue;
  }
}

GP_TARGET void noise(uint8_t* image, size_t pixels, float mean, float spread, const uint32_t key[2]) {
  constexpr int kRun = 3 * kNoiseRun;
  float normal[kRun];
  int16_t planes[kRun], changes[kRun];
  for (size_t p = 0; p < pixels; p += kNoiseRun) {
    GP_NOISE(key, static_cast<uint32_t>(p), normal);
    for (int i = 0; i < kRun; ++i) {
      const float exact = mean + normal[i] * spread;
      const float low = exact > -255.0f ? exact : -255.0f;
      planes[i] = static_cast<int16_t>(static_cast<int32_t>(low < 255.0f ? low : 255.0f));
    }
    for (int i = 0; i < kNoiseRun; ++i) {
      changes[i * 3] = planes[i], changes[i * 3 + 1] = planes[kNoiseRun + i], changes[i * 3 + 2] = planes[2 * kNoiseRun + i];
    }
    uint8_t* at = image + p * 3;
    const size_t left = (pixels - p) * 3;
    uint8_t levels[kRun];
    std::memcpy(levels, at, left < kRun ? left : kRun);
    for (int i = 0; i < kRun; ++i) {
      const int16_t sum = static_cast<int16_t>(levels[i] + changes[i]);
      const int16_t low = sum > 0 ? sum : int16_t{0};
      levels[i] = static_cast<uint8_t>(low < 255 ? low : 255);
    }
    std::memcpy(at, levels, left < kRun ? left : kRun);
  }
}

GP_TARGET void uniform_planes(const uint32_t key[2], size_t pixels, float* out) {
  uint32_t words[4 * kNoiseRun];
  float numbers[2 * kNoiseRun];
  for (size_t p = 0; p < pixels; p += kNoiseRun) {
    GP_WORDS(key, static_cast<uint32_t>(p), words);
    for (int i = 0; i < 2 * kNoiseRun; ++i) {
      numbers[i] = (static_cast<float>(static_cast<int32_t>(words[i] >> 9)) + 0.5f) * 2.384185791015625e-07f - 1.0f;
    }
    const size_t bytes = (pixels - p < kNoiseRun ? pixels - p : kNoiseRun) * sizeof(float);
    std::memcpy(out + p, numbers, bytes);
    std::memcpy(out + pixels + p, numbers + kNoiseRun, bytes);
  }
}

GP_TARGET void sharpness(const uint8_t* source, uint8_t* image, int height, int width, float factor) {
  constexpr size_t kBytes = 768;
  const float rest = 1.0f - factor;
  const size_t stride = static_cast<size_t>(width) * 3;
  uint16_t columns[kBytes + 6];
  int16_t differences[kBytes];
  for (int y = 1; y < height - 1; ++y) {
    for (size_t begin = 3; begin < stride - 3; begin += kBytes) {
      const size_t left = stride - 3 - begin, count = left < kBytes ? left : kBytes;
      const uint8_t* middle = source + static_cast<size_t>(y) * stride + begin;
      const uint8_t *from = middle - 3, *above = from - stride, *below = from + stride;
      uint8_t* out = image + static_cast<size_t>(y) * stride + begin;
      for (size_t i = 0; i < count + 6; ++i) columns[i] = static_cast<uint16_t>(above[i] + from[i] + below[i]);
      for (size_t i = 0; i < count; ++i) {
        // (8 neighbours + 5 times the middle + 6) / 13, which rounds, as 13 is odd; 5042 is 2^16 / 13, and serves here.
        const uint16_t sum = static_cast<uint16_t>(columns[i] + columns[i + 3] + columns[i + 6] + 4 * middle[i] + 6);
        const uint16_t smooth = static_cast<uint16_t>((uint32_t{sum} * 5042u) >> 16);
        differences[i] = static_cast<int16_t>(smooth - middle[i]);
      }
      for (size_t i = 0; i < count; ++i) out[i] = level(middle[i] + differences[i] * rest);
    }
  }
}

// What a blur adds up at a time: kBlurBlock numbers, which stay in registers.
typedef float Vector __attribute__((vector_size(GP_VECTOR)));
constexpr int kLanes = GP_VECTOR / 4;

struct Block {
  Vector part[kBlurBlock / kLanes];
};

GP_TARGET inline void start(Block& total, const float* middle, float weight) {
  for (int v = 0; v < kBlurBlock / kLanes; ++v) {
    Vector some;
    std::memcpy(&some, middle + v * kLanes, sizeof some);
    total.part[v] = some * weight;
  }
}

GP_TARGET inline void add_pair(Block& total, const float* before, const float* after, float weight) {
  for (int v = 0; v < kBlurBlock / kLanes; ++v) {
    Vector some, other;
    std::memcpy(&some, before + v * kLanes, sizeof some);
    std::memcpy(&other, after + v * kLanes, sizeof other);
    total.part[v] += (some + other) * weight;
  }
}

GP_TARGET void blur_row(const float* middle, size_t count, const float* weights, int taps, ptrdiff_t step, float* out) {
  for (size_t at = 0; at < count; at += kBlurBlock) {
    Block total;
    start(total, middle + at, weights[0]);
    for (ptrdiff_t d = 1; d <= taps; ++d) add_pair(total, middle + at - d * step, middle + at + d * step, weights[d]);
    std::memcpy(out + at, &total, sizeof total);
  }
}

GP_TARGET inline void sum_block(const float* const* rows, size_t at, const float* weights, int taps, float* exact) {
  Block total;
  start(total, rows[0] + at, weights[0]);
  for (int d = 1; d <= taps; ++d) add_pair(total, rows[-d] + at, rows[d] + at, weights[d]);
  std::memcpy(exact, &total, sizeof total);
}

GP_TARGET void sum_columns(const float* const* rows, size_t begin, size_t end, const float* weights, int taps,
                           float* out) {
  for (size_t at = begin; at < end; at += kBlurBlock) {
    float exact[kBlurBlock];
    sum_block(rows, at, weights, taps, exact);
    std::memcpy(out + at, exact, (end - at < kBlurBlock ? end - at : kBlurBlock) * sizeof(float));
  }
}

GP_TARGET void blur_columns(const float* const* rows, size_t begin, size_t end, const float* weights, int taps,
                            uint8_t* out) {
  for (size_t at = begin; at < end; at += kBlurBlock) {
    float exact[kBlurBlock];
    uint8_t levels[kBlurBlock];
    sum_block(rows, at, weights, taps, exact);
    for (int i = 0; i < kBlurBlock; ++i) levels[i] = static_cast<uint8_t>(static_cast<int32_t>(rounded(cut(exact[i]))));
    std::memcpy(out + at, levels, end - at < kBlurBlock ? end - at : kBlurBlock);
  }
}

// Where a row of the output is read: `count` pixels from x on.
struct Coordinates {
  float x[kChunk], y[kChunk];
};

GP_TARGET inline void coordinates(const Mapping& map, int x, int y, int count, Coordinates& at) {
  const float* matrix = map.matrix;
  const float a = matrix[0], d = matrix[3], down = static_cast<float>(y);
  if (map.planes != nullptr) {
    const float *right = map.planes + static_cast<size_t>(y) * map.width + x, *below = right + map.pixels;
    for (int i = 0; i < count; ++i) {
      at.x[i] = near(static_cast<float>(x + i) + right[i] * a);
      at.y[i] = near(down + below[i] * matrix[1]);
    }
    return;
  }
  const float right = matrix[1] * down + matrix[2], below = matrix[4] * down + matrix[5];
  if (map.perspective) {
    const float g = matrix[6], rest = matrix[7] * down + 1.0f;
    for (int i = 0; i < count; ++i) {
      const float across = static_cast<float>(x + i), part = g * across + rest;
      at.x[i] = near((a * across + right) / part);
      at.y[i] = near((d * across + below) / part);
    }
    return;
  }
  for (int i = 0; i < count; ++i) {
    const float across = static_cast<float>(x + i);
    at.x[i] = near(a * across + right);
    at.y[i] = near(d * across + below);
  }
}

// What moves up or down, or is turned over: 23 us for 224 x 224 where pixel by pixel takes 71.
GP_TARGET void whole_rows(const uint8_t* source, uint8_t* image, int height, int width, const Mapping& map,
                          int32_t outside) {
  const size_t bytes = static_cast<size_t>(width) * 3;
  for (int y = 0; y < height; ++y, image += bytes) {
    const float place = near(map.matrix[4] * static_cast<float>(y) + map.matrix[5]);
    const int32_t line = static_cast<int32_t>(rounded(place));
    if ((line >= 0) & (line < height)) {
      std::memcpy(image, source + line * bytes, bytes);
    } else {
      for (int x = 0; x < width; ++x) std::memcpy(image + x * 3, source + outside, 3);
    }
  }
}

GP_TARGET void nearest(const uint8_t* source, uint8_t* image, int height, int width, const Mapping& map,
                       int32_t outside) {
  const float* m = map.matrix;
  if (!map.perspective && map.planes == nullptr && m[0] == 1.0f && m[1] == 0.0f && m[2] == 0.0f && m[3] == 0.0f) {
    return whole_rows(source, image, height, width, map, outside);
  }
  Coordinates at;
  int32_t from[kChunk];
  for (int y = 0; y < height; ++y) {
    for (int x = 0; x < width; x += kChunk) {
      const int count = width - x < kChunk ? width - x : kChunk;
      coordinates(map, x, y, count, at);
      for (int i = 0; i < count; ++i) {
        const int32_t column = static_cast<int32_t>(rounded(at.x[i])), line = static_cast<int32_t>(rounded(at.y[i]));
        const bool inside = (column >= 0) & (column < width) & (line >= 0) & (line < height);
        from[i] = inside ? (line * width + column) * 3 : outside;
      }
      uint8_t* out = image + (static_cast<size_t>(y) * width + x) * 3;
      for (int i = 0; i + 1 < count; ++i) std::memcpy(out + i * 3, source + from[i], 4);  // the next covers one byte
      std::memcpy(out + (count - 1) * 3, source + from[count - 1], 3);
    }
  }
}

// The pixel before a place in a row or column, the one before that, and the next two, of `size` pixels. The shares are of
// the last three.
struct Neighbours {
  int32_t at[4];
  float share[3];
};

GP_TARGET inline Neighbours neighbours(float place, int size) {
  const float whole = floored(place), part = place - whole;
  const float before = ((2.0f - part) * part - 1.0f) * part, next = ((1.0f - part) * part + 1.0f) * part;
  Neighbours found = {{}, {before, next, (part - 1.0f) * part * part}};
  const int32_t first = static_cast<int32_t>(whole), offsets[4] = {0, -1, 1, 2};
  for (int i = 0; i < 4; ++i) {
    const int32_t at = first + offsets[i];
    found.at[i] = at < 0 ? 0 : at < size ? at : size - 1;
  }
  return found;
}

GP_TARGET inline Pixel weighed(const Pixel* pixels, const float* shares) {
  Pixel total = pixels[0];
  for (int i = 0; i < 3; ++i) total += (pixels[i + 1] - pixels[0]) * shares[i];
  return total;
}

GP_TARGET void bicubic(const uint8_t* source, uint8_t* image, int height, int width, const Mapping& map,
                       int32_t outside) {
  const float bottom = static_cast<float>(height) - 0.5f, right = static_cast<float>(width) - 0.5f;
  Coordinates at;
  for (int y = 0; y < height; ++y) {
    for (int x = 0; x < width; x += kChunk) {
      const int count = width - x < kChunk ? width - x : kChunk;
      coordinates(map, x, y, count, at);
      for (int i = 0; i < count; ++i) {
        uint8_t* out = image + (static_cast<size_t>(y) * width + x + i) * 3;
        if (!((at.y[i] >= -0.5f) & (at.y[i] < bottom) & (at.x[i] >= -0.5f) & (at.x[i] < right))) {
          std::memcpy(out, source + outside, 3);
          continue;
        }
        const Neighbours rows = neighbours(at.y[i], height), columns = neighbours(at.x[i], width);
        Pixel lines[4], pixels[4];
        for (int r = 0; r < 4; ++r) {
          const uint8_t* row = source + static_cast<size_t>(rows.at[r]) * width * 3;
          for (int c = 0; c < 4; ++c) pixels[c] = load_pixel(row + columns.at[c] * 3);
          lines[r] = weighed(pixels, columns.share);
        }
        float exact[4];
        const Pixel total = weighed(lines, rows.share);
        std::memcpy(exact, &total, sizeof exact);
        for (int c = 0; c < 3; ++c) out[c] = level(exact[c]);
      }
    }
  }
}

GP_TARGET inline void find_shares(const Coordinates& at, int count, int height, int width, Shares& shares) {
  for (int i = 0; i < count; ++i) {
    const float top = floored(at.y[i]), left = floored(at.x[i]);
    const float lower = at.y[i] - top, right = at.x[i] - left;
    const int32_t line = static_cast<int32_t>(top), column = static_cast<int32_t>(left);
    const bool has_top = (line >= 0) & (line < height), has_bottom = (line >= -1) & (line < height - 1);
    const bool has_left = (column >= 0) & (column < width), has_right = (column >= -1) & (column < width - 1);
    const float upper = 1.0f - lower, rest = 1.0f - right;
    const float share0 = pick(has_top & has_left, upper * rest, 0.0f);
    const float share1 = pick(has_top & has_right, upper * right, 0.0f);
    const float share2 = pick(has_bottom & has_left, lower * rest, 0.0f);
    const float share3 = pick(has_bottom & has_right, lower * right, 0.0f);
    shares.share[0][i] = share0, shares.share[1][i] = share1, shares.share[2][i] = share2, shares.share[3][i] = share3;
    shares.covered[i] = ((share0 + share1) + share2) + share3;
    // A pair may have one pixel before or after its row, which then counts nothing.
    const int32_t offset = (has_left | has_right) ? column * 3 : 0;
    shares.top[i] = has_top ? line * width * 3 + offset : 0;
    shares.bottom[i] = has_bottom ? (line + 1) * width * 3 + offset : 0;
  }
}

GP_TARGET void bilinear(const uint8_t* source, uint8_t* image, int height, int width, const Mapping& map,
                        const float* fill) {
  Coordinates at;
  Shares from;
  for (int y = 0; y < height; ++y) {
    for (int x = 0; x < width; x += kChunk) {
      const int count = width - x < kChunk ? width - x : kChunk;
      coordinates(map, x, y, count, at);
      find_shares(at, count, height, width, from);
      interpolate(source, from, count, fill, image + (static_cast<size_t>(y) * width + x) * 3);
    }
  }
}

const AugmentLoops kLoops = {gray_sum, extremes,       saturation, grayscale, hue,          hsv,         add_share, channels,
                             noise,    uniform_planes, sharpness,  blur_row,  blur_columns, sum_columns, nearest,   bicubic,
                             bilinear};
