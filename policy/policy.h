// Policies as files: the headers for users of policy/.
#pragma once

#include <halftone/policy/policy_file.h>
#include <halftone/policy/rules.h>
#include <halftone/policy/rules/site.h>
#include <halftone/policy/session.h>
#include <halftone/policy/telemetry/overflow.h>
#include <halftone/policy/telemetry/probe.h>
