#include "base/ftoa.h"
