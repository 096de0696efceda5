//go:build tools

// Package main names helm here so that go.mod pins it: the sandbox builds the helm command from this module.
package main

import _ "helm.sh/helm/v3/cmd/helm"
