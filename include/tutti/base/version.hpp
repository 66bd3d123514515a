// Which tutti this is. The build and the package take their version from here.
#pragma once

#define TUTTI_VERSION "0.1.0"
