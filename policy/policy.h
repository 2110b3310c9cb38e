// Policies as files: everything that users of policy/ include.
#pragma once

#include <halftone/policy/overflow.h>
#include <halftone/policy/policy_file.h>
#include <halftone/policy/probe.h>
#include <halftone/policy/rulebook.h>
#include <halftone/policy/session.h>
#include <halftone/policy/site.h>
