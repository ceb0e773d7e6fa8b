// What the integer product takes from the float product's tiles.
#pragma once

#include "tile.h"

namespace paceline {
namespace {

using Pair = Sixteen;

}  // namespace
}  // namespace paceline
