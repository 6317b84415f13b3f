#include <cstring>

#include "augment.h"

#define GP_TARGET

namespace gpupipe {
namespace {
#include "augment_loops.h"
}  // namespace

const AugmentLoops& portable_augment() { return kLoops; }

}  // namespace gpupipe
