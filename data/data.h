// The headers of data/ for users: datasets, the loader, images and their transforms, text.
#pragma once

#include <halftone/data/csv.h>
#include <halftone/data/data_loader.h>
#include <halftone/data/images.h>
#include <halftone/data/sets.h>
#include <halftone/data/text.h>
#include <halftone/data/transforms.h>
