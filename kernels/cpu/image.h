// One image: from encoded bytes, or from pixels, to the crops that are wanted.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include "axis.h"
#include "jpeg.h"
#include "passes.h"

namespace gpupipe {

struct Box {
  int top, left, height, width;
};

// The window of the source image that is resized to resized_height x resized_width, of which the part of out_height x
// out_width at the anchor is wanted, mirrored left to right if `flip`. Coordinates are of the upright image. Where a
// view has a color to fill with, the window may reach out of the image, and the part out of what was resized.
struct Geometry {
  Box window;
  int resized_height, resized_width;
  int anchor_top, anchor_left;
  int out_height, out_width;
  bool flip;
};

// One crop, and where it goes: out_height rows of out_width 3-byte pixels.
struct View {
  Geometry geometry;
  Filter filter;
  const uint8_t* fill;  // red, green, blue of what lies outside; null where nothing may
  Padding padding;      // of what was resized
  uint8_t* out;
};

struct Request {
  const uint8_t* data;
  size_t bytes;
  int height, width;  // expected size as stored, 0 if unknown
  int orientation;    // of EXIF, 1 to 8
  bool fast;  // let libjpeg scale by 1/2, 1/4 or 1/8 first, where every window is that many times its output
};

// Pixels of `all` left and right of the part of it that lies in the image.
struct Margins {
  int left, right;

  Margins(const Box& all, const Box& inside)
      : left(std::max(inside.left - all.left, 0)),
        right(std::max(all.left + all.width - inside.left - inside.width, 0)) {}

  size_t bytes() const { return (static_cast<size_t>(left) + static_cast<size_t>(right)) * 4; }
};

// The two passes of one view. Rows of the source come in any number at a time.
class Resize {
 public:
  void plan(const View& view, int denominator, const Passes& passes);
  // Of the source after scaling: what the view reads. It may reach out of the image.
  const Box& region() const { return region_; }
  // Rows of 4-byte pixels, `in` being the pixel at `left` of the first, which is row `top`; others' rows are passed over.
  void take(const Passes& passes, const uint8_t* in, size_t in_stride, int top, int left, int rows);
  // Rows that were not taken lie outside of the image.
  void write(const Passes& passes, const View& view);
  size_t bytes() const { return middle_.capacity(); }

 private:
  uint8_t* middle_row(int row);

  Axis rows_, columns_;
  Prepared prepared_;
  std::vector<uint8_t> middle_;  // between the passes
  Box region_{}, shown_{};       // shown_: what of the output lies in what was resized
  int first_ = 0, last_ = 0;     // the rows that were taken
};

// Makes images one after another on one thread, in memory that it keeps from one to the next.
class ImageMaker {
 public:
  ImageMaker() : jpeg_(nullptr, gp_jpeg_free) {}

  // Decodes once for all views. Returns GP_OK, or another code of jpeg.h with `message` filled.
  int decode(const Request& request, const std::vector<View>& views, const gp_limits& limits, const Passes& passes,
             char* message);
  // One view from the pixels of its window, 3 bytes each, without gaps.
  void resize(const uint8_t* pixels, const View& view, const Passes& passes);
  // Gives memory back that an unusually large image has taken.
  void trim();

 private:
  int decode_upright(const std::vector<View>& views, bool fast, const Passes& passes);
  int decode_turned(const std::vector<View>& views, int orientation, const Passes& passes);
  // Takes rows of the image, those of `box`; each has room before and behind it for its margins.
  void take(const std::vector<View>& views, const Passes& passes, const Margins& margins, uint8_t* rows, size_t stride,
            const Box& box);
  // Prepares a resize for each view. Returns the box of the source, after scaling, that they read between them.
  Box plan(const std::vector<View>& views, int denominator, const Passes& passes);

  std::unique_ptr<gp_jpeg, void (*)(gp_jpeg*)> jpeg_;
  std::vector<Resize> resizes_;  // one for each view, kept for later images
  std::vector<uint8_t> source_, turned_;
};

}  // namespace gpupipe
