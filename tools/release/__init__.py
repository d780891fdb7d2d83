"""A release: wheel, chart, image, SBOM and checksums, equal for equal sources. Not in the wheel."""
