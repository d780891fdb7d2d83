"""A release: wheel, chart, image, SBOM and checksums, equal for equal sources (decision 187). Not in the wheel."""
