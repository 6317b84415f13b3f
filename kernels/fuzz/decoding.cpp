// Hostile files and hostile geometry against the decoder. The input is kHeader bytes that drive the geometry, then the
// file. Beside memory errors, which the sanitizers find, it is a failure when
//   - the verdict or the pixels depend on what the thread decoded before, or on the variant of the passes;
//   - a good image after it does not come out as ever;
//   - what gp_walk finds plain libjpeg refuses, or takes for an image of another size;
//   - the pixels of an accepted image differ from those of plain libjpeg, which decodes all of it, resized by gp_resize.
//   - an image of its own size among others has other pixels, or anything is written beside it.
// Built for libFuzzer, or, with GP_STANDALONE, with a mutator of its own; build.sh does both.
#include <setjmp.h>
#include <stdio.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include <jpeglib.h>

#include "../cpu/api.h"
#include "common.h"
#include "made_file.h"

namespace {

constexpr size_t kHeader = 32;
constexpr int kPixels = 1 << 16;  // the usual limit here: larger images only cost time
constexpr uint8_t kFill[3] = {9, 99, 200};
constexpr int kGood = 24;          // pixels along the sides of the good image

struct Whole {
  jpeg_error_mgr errors;
  jpeg_decompress_struct codec;
  jmp_buf on_error;
};

void leave(j_common_ptr codec) { longjmp(static_cast<Whole*>(codec->client_data)->on_error, 1); }
void be_quiet(j_common_ptr, int) {}
void print_nothing(j_common_ptr) {}

// All of the image by libjpeg, as other loaders use it: 3-byte pixels, or false where it has an error or is too large.
bool decode_whole(const uint8_t* data, size_t size, Bytes& pixels, int& height, int& width, bool stop_at_header) {
  std::unique_ptr<Whole> whole(new Whole);
  whole->codec.err = jpeg_std_error(&whole->errors);
  whole->errors.error_exit = leave;
  whole->errors.emit_message = be_quiet;
  whole->errors.output_message = print_nothing;
  whole->codec.client_data = whole.get();
  bool done = false;
  jpeg_create_decompress(&whole->codec);
  whole->codec.client_data = whole.get();
  if (setjmp(whole->on_error) == 0) {
    jpeg_mem_src(&whole->codec, data, static_cast<unsigned long>(size));
    jpeg_read_header(&whole->codec, TRUE);
    height = static_cast<int>(whole->codec.image_height);
    width = static_cast<int>(whole->codec.image_width);
    if (stop_at_header) {
      done = true;
    } else if (static_cast<int64_t>(height) * width <= kPixels) {
      whole->codec.out_color_space = JCS_RGB;
      jpeg_start_decompress(&whole->codec);
      pixels.resize(static_cast<size_t>(height) * width * 3);
      while (whole->codec.output_scanline < whole->codec.output_height) {
        JSAMPROW row = pixels.data() + static_cast<size_t>(whole->codec.output_scanline) * width * 3;
        jpeg_read_scanlines(&whole->codec, &row, 1);
      }
      done = true;
    }
  }
  jpeg_destroy_decompress(&whole->codec);
  return done;
}

struct Geometry {
  int32_t window[4], resized[2], anchor[2], size[2];
  uint8_t orientation, flip;
};

struct Plan {
  Geometry geometry;
  int32_t out_height, out_width, fast;
  uint8_t bicubic;
  gp_limits limits;
  const char* variant;
  bool compare;  // to plain libjpeg
  bool repeat;   // after another image, with the portable passes
  bool fills;    // windows and outputs may reach out of what they are of
  int32_t padding;  // with which then
  bool two;      // views: the second of the lower right part of the window, with the other filter
  bool own_size; // beside one of another size, in rows of bytes
};

int32_t number(const uint8_t* at) {
  uint32_t value = 0;
  for (int i = 0; i < 4; ++i) value = value << 8 | at[i];
  return static_cast<int32_t>(value);
}

int within(int value, int count) { return count > 0 ? static_cast<int>(static_cast<uint32_t>(value) % static_cast<uint32_t>(count)) : 0; }

// Numbers far outside, or just inside, the image and one another.
Plan plan_of(const uint8_t* head, int height, int width) {
  static const char* const kVariants[] = {"portable", "avx2", "avx512", nullptr};
  Plan plan{};
  const uint8_t flags = head[0], more = head[1];
  plan.bicubic = flags & 1;
  plan.fast = flags >> 1 & 1;
  plan.compare = flags >> 2 & 1;
  plan.repeat = flags >> 5 & 1;
  plan.variant = kVariants[flags >> 6];
  if (plan.variant != nullptr && !gp_has_variant(plan.variant)) plan.variant = nullptr;
  plan.out_height = 1 + head[2] % 48;
  plan.out_width = 1 + head[3] % 48;
  plan.limits = {kPixels, int64_t{1} << 25, 12};
  plan.two = head[3] & 64;
  plan.own_size = head[3] & 128;
  plan.fills = head[2] & 128;
  plan.padding = plan.fills ? head[21] >> 6 : 0;
  if (more & 1) plan.limits.max_pixels = head[30];
  if (more & 2) plan.limits.max_memory = int64_t{head[30]} * 64 - 64;
  if (more & 4) plan.limits.max_scans = head[30] % 4;
  Geometry& g = plan.geometry;
  g.flip = flags >> 3 & 1;
  g.orientation = flags & 16 ? head[31] : more >> 5;
  if ((more & 24) == 24) {  // anything at all
    for (int i = 0; i < 4; ++i) g.window[i] = number(head + 4 + i * 4);
    for (int i = 0; i < 2; ++i) g.resized[i] = number(head + 20 + i * 4), g.anchor[i] = number(head + 22 + i * 4);
    for (int i = 0; i < 2; ++i) g.size[i] = head[28 + i];
    return plan;
  }
  if (g.orientation >= 5 && g.orientation <= 8) std::swap(height, width);
  const int slack = head[24] >= 240 ? 1 : 0;  // one beyond the image
  g.window[0] = within(number(head + 4), height);
  g.window[1] = within(number(head + 8), width);
  g.window[2] = 1 + within(number(head + 12), height - g.window[0] + slack);
  g.window[3] = 1 + within(number(head + 16), width - g.window[1] + slack);
  g.resized[0] = plan.out_height + head[20] % 16;
  g.resized[1] = plan.out_width + head[21] % 16;
  g.anchor[0] = within(head[22], g.resized[0] - plan.out_height + 1);
  g.anchor[1] = within(head[23], g.resized[1] - plan.out_width + 1);
  for (int axis = 0; plan.fills && axis < 2; ++axis) {
    g.window[axis] -= head[25 + axis] % 64;
    g.window[axis + 2] += head[27 - axis] % 64 + head[25 + axis] % 16;
    g.anchor[axis] -= head[20 + axis] % 32;
  }
  if (more & 8) g.size[0] = head[28], g.size[1] = head[29];
  return plan;
}

// The window of the second view.
void lower_right(const int32_t* window, int32_t* part) {
  for (int axis = 0; axis < 2; ++axis) {
    const int64_t start = window[axis], length = window[axis + 2];
    part[axis] = static_cast<int32_t>(start + length / 2);
    part[axis + 2] = static_cast<int32_t>(length - length / 2);
  }
}

struct Result {
  std::vector<int32_t> codes;
  std::vector<std::string> messages;
  Bytes out, second;
  size_t each;
};

// Decodes files one after another with one geometry each.
Result decode(const Plan& plan, const std::vector<std::pair<const uint8_t*, size_t>>& files,
              const std::vector<Geometry>& geometries, const char* variant) {
  const int count = static_cast<int>(files.size());
  std::vector<const uint8_t*> data;
  std::vector<int64_t> bytes;
  std::vector<int32_t> sizes, windows, parts, resized, anchors;
  Bytes orientations, flips;
  for (int i = 0; i < count; ++i) {
    const Geometry& g = geometries[i];
    data.push_back(files[i].first);
    bytes.push_back(static_cast<int64_t>(files[i].second));
    sizes.insert(sizes.end(), g.size, g.size + 2);
    windows.insert(windows.end(), g.window, g.window + 4);
    parts.resize(parts.size() + 4);
    lower_right(g.window, &parts[parts.size() - 4]);
    resized.insert(resized.end(), g.resized, g.resized + 2);
    anchors.insert(anchors.end(), g.anchor, g.anchor + 2);
    orientations.push_back(g.orientation);
    flips.push_back(g.flip);
  }
  Result result;
  result.each = static_cast<size_t>(plan.out_height) * plan.out_width * 3;
  result.out.assign(result.each * count, 0);
  result.codes.assign(count, -1);
  Bytes messages(static_cast<size_t>(count) * GP_MESSAGE);
  result.second.assign(plan.two ? result.out.size() : 0, 0);
  const Bytes filters(count, plan.bicubic), others(count, 1 - plan.bicubic);
  const gp_view views[2] = {{plan.out_height, plan.out_width, windows.data(), resized.data(), anchors.data(),
                             flips.data(), filters.data(), result.out.data(), plan.fills ? kFill : nullptr, plan.padding},
                            {plan.out_height, plan.out_width, parts.data(), resized.data(), anchors.data(),
                             flips.data(), others.data(), result.second.data(), plan.fills ? kFill : nullptr, plan.padding}};
  const gp_images images = {count, plan.two ? 2 : 1, plan.fast, 1, variant, data.data(), bytes.data(), sizes.data(),
                            orientations.data(), views, plan.limits, result.codes.data(),
                            reinterpret_cast<char*>(messages.data())};
  require(gp_decode_crop_resize(&images) == 0, "the call is refused");
  for (int i = 0; i < count; ++i) {
    const char* text = reinterpret_cast<char*>(messages.data()) + static_cast<size_t>(i) * GP_MESSAGE;
    require(memchr(text, 0, GP_MESSAGE) != nullptr, "a message without an end");
    require((result.codes[i] == GP_OK) == (text[0] == 0), "a message and a code that contradict one another");
    result.messages.push_back(text);
  }
  return result;
}

// The same good image with the same geometry every time.
Result decode_good(const char* variant) {
  static const Bytes file = made_file(kGood, false);
  Plan plan{};
  plan.out_height = 7, plan.out_width = 9;
  plan.limits = {kPixels, int64_t{1} << 25, 12};
  Geometry whole{};
  whole.window[2] = whole.window[3] = kGood;
  whole.resized[0] = plan.out_height, whole.resized[1] = plan.out_width;
  return decode(plan, {{file.data(), file.size()}}, {whole}, variant);
}

// The same as decode, from the whole image.
Bytes expected(const Plan& plan, const Bytes& pixels, int height, int width) {
  const Geometry& g = plan.geometry;
  const int o = g.orientation;
  const bool transposed = o >= 5 && o <= 8, bottom = o == 3 || o == 4 || o == 6 || o == 7,
             right = o == 2 || o == 3 || o == 7 || o == 8;
  Bytes window;
  for (int y = g.window[0]; y < g.window[0] + g.window[2]; ++y) {
    for (int x = g.window[1]; x < g.window[1] + g.window[3]; ++x) {
      int row = transposed ? x : y, column = transposed ? y : x;
      if (row < 0 || column < 0 || row >= height || column >= width) {
        window.insert(window.end(), kFill, kFill + 3);
        continue;
      }
      if (bottom) row = height - 1 - row;
      if (right) column = width - 1 - column;
      const uint8_t* pixel = pixels.data() + (static_cast<size_t>(row) * width + column) * 3;
      window.insert(window.end(), pixel, pixel + 3);
    }
  }
  Bytes out(static_cast<size_t>(plan.out_height) * plan.out_width * 3);
  const uint8_t* data = window.data();
  const int32_t whole[4] = {0, 0, g.window[2], g.window[3]};
  int32_t code = -1;
  char message[GP_MESSAGE];
  gp_images images{};
  images.count = images.view_count = images.threads = 1;
  const gp_view view = {plan.out_height, plan.out_width, whole,      g.resized,
                        g.anchor,        &g.flip,        &plan.bicubic, out.data(), plan.fills ? kFill : nullptr, plan.padding};
  images.variant = "portable";
  images.data = &data, images.views = &view, images.codes = &code, images.messages = message;
  require(gp_resize(&images) == 0 && code == GP_OK, "the resize fails");
  return out;
}

// The image once more, after a good one of another size, each with a size of its own.
void in_own_sizes(const Plan& plan, const std::pair<const uint8_t*, size_t>& file, const Result& alone) {
  static const Bytes good = made_file(kGood, true);
  const int32_t sizes[] = {3, 5, plan.out_height, plan.out_width};
  const Geometry& g = plan.geometry;
  const int32_t windows[] = {1, 2, 9, 8, g.window[0], g.window[1], g.window[2], g.window[3]};
  const int32_t resized[] = {3, 5, g.resized[0], g.resized[1]}, anchors[] = {0, 0, g.anchor[0], g.anchor[1]};
  const int32_t stored[] = {0, 0, g.size[0], g.size[1]};
  const uint8_t flips[] = {0, g.flip}, filters[] = {0, plan.bicubic}, orientations[] = {1, g.orientation};
  const uint8_t* const data[] = {good.data(), file.first};
  const int64_t bytes[] = {static_cast<int64_t>(good.size()), static_cast<int64_t>(file.second)};
  const size_t stride = std::max<size_t>(45, alone.each) + 5;
  const Exact<uint8_t> out(Bytes(stride * 2, 0xA5));
  int32_t codes[2];
  char messages[2 * GP_MESSAGE];
  const gp_view view = {48, 48, windows, resized, anchors, flips, filters, out.get(), plan.fills ? kFill : nullptr,
                        plan.padding, sizes, static_cast<int64_t>(stride)};
  const gp_images images = {2, 1, plan.fast, 1, plan.variant, data, bytes, stored, orientations, &view, plan.limits, codes, messages};
  require(gp_decode_crop_resize(&images) == 0, "the call with sizes is refused");
  require(codes[1] == alone.codes[0], "the verdict depends on the sizes of others");
  const uint8_t *first = out.get(), *second = first + stride;
  for (size_t i = 45; i < stride; ++i) require(first[i] == 0xA5, "something is written behind an image");
  for (size_t i = alone.each; i < stride; ++i) require(second[i] == 0xA5, "something is written behind an image");
  require(codes[1] != GP_OK || Bytes(second, second + alone.each) == Bytes(alone.out.begin(), alone.out.begin() + alone.each),
          "an image of its own size has other pixels");
}

Bytes part(const Result& result, int row) {
  return Bytes(result.out.begin() + row * result.each, result.out.begin() + (row + 1) * result.each);
}

long accepted = 0, compared = 0, plain = 0;

// The walk of the segments; `height` and `width` by libjpeg, 0 where it refuses the header.
void walk(const uint8_t* data, size_t size, int height, int width) {
  const int64_t bytes = static_cast<int64_t>(size);
  gp_cost cost;
  gp_costs(1, &data, &bytes, &cost);
  int32_t size_of[2] = {0, 0};
  gp_plain_files(1, &data, &bytes, int64_t{1} << 40, size_of);
  require(size_of[0] == 0 || cost.height == 0 || (size_of[0] == cost.height && size_of[1] == cost.width), "two sizes of one file");
  gp_header header;
  if (gp_walk(data, size, 100, &header) != nullptr) {
    require(header.height == 0 && header.width == 0 && header.orientation == 0, "an odd file has a size");
    return;
  }
  ++plain;
  require(header.height == height && header.width == width, "a plain file is another to libjpeg");
  require(header.orientation >= 0 && header.orientation <= 8, "an orientation that is none");
}

void one(const uint8_t* input, size_t length) {
  if (length < kHeader) return;
  const Exact<uint8_t> file(input + kHeader, length - kHeader);
  const size_t size = length - kHeader;
  static const Bytes good_pixels = decode_good("portable").out;
  const std::pair<const uint8_t*, size_t> hostile{file.memory.get(), size};
  int height = 0, width = 0;
  Bytes pixels;
  decode_whole(file.memory.get(), size, pixels, height, width, true);
  walk(file.memory.get(), size, height, width);
  const Plan plan = plan_of(input, height, width);
  const Result first = decode(plan, {hostile}, {plan.geometry}, plan.variant);
  const Result next = decode_good(plan.variant);
  require(next.codes[0] == GP_OK, ("a good image is refused after this one: " + next.messages[0]).c_str());
  require(next.out == good_pixels, "a good image has other pixels after this one");
  if (plan.repeat) {
    const Result again = decode(plan, {hostile}, {plan.geometry}, "portable");
    require(first.codes == again.codes && first.messages == again.messages, "the verdict depends on what came before");
    require(first.codes[0] != GP_OK || (first.out == again.out && first.second == again.second),
            "the pixels depend on the variant or on what came before");
  }
  if (plan.own_size && !plan.two) in_own_sizes(plan, hostile, first);
  if (first.codes[0] != GP_OK) return;
  ++accepted;
  if (!plan.compare || plan.fast) return;
  if (int64_t{plan.geometry.window[2]} * plan.geometry.window[3] > int64_t{1} << 22) return;  // far out of the image
  ++compared;
  require(decode_whole(file.memory.get(), size, pixels, height, width, false), "libjpeg refuses what was accepted");
  require(expected(plan, pixels, height, width) == part(first, 0), "the pixels are not those of the whole image");
  if (!plan.two) return;
  Plan other = plan;
  lower_right(plan.geometry.window, other.geometry.window);
  other.bicubic = 1 - plan.bicubic;
  require(expected(other, pixels, height, width) == first.second, "the second view's pixels are others");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  one(data, size);
  return 0;
}

#ifdef GP_STANDALONE
#include <dirent.h>

namespace {

Bytes read_file(const std::string& path) {
  Bytes data;
  FILE* file = fopen(path.c_str(), "rb");
  require(file != nullptr, ("can't read " + path).c_str());
  for (int c; (c = fgetc(file)) != EOF;) data.push_back(static_cast<uint8_t>(c));
  fclose(file);
  return data;
}

// Bits, bytes, marker codes, pieces moved, cut out or doubled, ends cut off.
void mutate(Bytes& data, const std::vector<Bytes>& seeds) {
  static const uint8_t kMarkers[] = {0xC0, 0xC1, 0xC2, 0xC4, 0xC9, 0xCA, 0xD0, 0xD8, 0xD9, 0xDA, 0xDB, 0xDD, 0xDC, 0xE1, 0xFE};
  for (uint32_t n = 1 + draw(3); n > 0; --n) {
    if (data.size() < kHeader + 4) return;
    // Most of what matters stands near the beginning.
    const uint32_t size = static_cast<uint32_t>(data.size()), reach = draw(2) ? std::min(size, 700u) : size;
    const uint32_t at = draw(3) ? draw(reach) : draw(kHeader), length = 1 + draw(std::min(size - at, 64u));
    switch (draw(9)) {
      case 0: data[at] ^= static_cast<uint8_t>(1 << draw(8)); break;
      case 1: data[at] = static_cast<uint8_t>(draw(256)); break;
      case 2: data[at] = draw(2) ? 0 : 0xFF; break;
      case 3: data[at] = static_cast<uint8_t>(data[at] + (draw(2) ? 1 : -1)); break;
      case 4: data.erase(data.begin() + at, data.begin() + at + length); break;
      case 5: {
        const Bytes piece(data.begin() + at, data.begin() + at + length);
        data.insert(data.begin() + draw(size), piece.begin(), piece.end());
        break;
      }
      case 6:
        if (at + 1 < size) data[at] = 0xFF, data[at + 1] = kMarkers[draw(sizeof kMarkers)];
        break;
      case 7:
        if (draw(4) == 0) data.resize(kHeader + draw(size - kHeader));
        break;
      default: {
        const Bytes& other = seeds[draw(static_cast<uint32_t>(seeds.size()))];
        const uint32_t from = draw(static_cast<uint32_t>(other.size()));
        const uint32_t many = std::min(static_cast<uint32_t>(other.size()) - from, length);
        data.insert(data.begin() + at, other.begin() + from, other.begin() + from + many);
      }
    }
  }
}

Bytes current;
void keep_input() {
  FILE* file = fopen("crash-decoding", "wb");
  if (file == nullptr) return;
  fwrite(current.data(), 1, current.size(), file);
  fclose(file);
}

}  // namespace

#if defined(__has_include) && __has_include(<sanitizer/common_interface_defs.h>)
#include <sanitizer/common_interface_defs.h>
#endif

// SEEDS SECONDS SEED, or one file to repeat what it did.
int main(int count, char** arguments) {
  if (count == 2) {
    current = read_file(arguments[1]);
    one(current.data(), current.size());
    return 0;
  }
  require(count == 4, "arguments: FOLDER SECONDS SEED, or FILE");
  __sanitizer_set_death_callback(keep_input);
  signal(SIGABRT, [](int) { keep_input(); _exit(1); });
  std::vector<std::string> names;
  std::vector<Bytes> seeds;
  DIR* folder = opendir(arguments[1]);
  require(folder != nullptr, "no such folder of seeds");
  while (const dirent* entry = readdir(folder)) {
    if (entry->d_name[0] != '.') names.push_back(std::string(arguments[1]) + "/" + entry->d_name);
  }
  closedir(folder);
  std::sort(names.begin(), names.end());
  for (const std::string& name : names) seeds.push_back(read_file(name));
  const int status = run_for(count, arguments, 4, "inputs", [&] {
    current = seeds[draw(static_cast<uint32_t>(seeds.size()))];
    for (size_t b = 0; b < kHeader && draw(4); ++b) current[b] = static_cast<uint8_t>(draw(256));
    if (draw(20)) mutate(current, seeds);
    one(current.data(), current.size());
  });
  printf("of these %ld plain, %ld accepted, %ld compared with plain libjpeg\n", plain, accepted, compared);
  return status;
}
#endif
