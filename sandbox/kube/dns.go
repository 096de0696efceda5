package main

import (
	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/coremain"
	_ "github.com/coredns/coredns/plugin/bind"
	_ "github.com/coredns/coredns/plugin/cache"
	_ "github.com/coredns/coredns/plugin/errors"
	_ "github.com/coredns/coredns/plugin/forward"
	_ "github.com/coredns/coredns/plugin/health"
	_ "github.com/coredns/coredns/plugin/kubernetes"
	_ "github.com/coredns/coredns/plugin/ready"
)

// dns runs CoreDNS with only the plugins that cluster DNS needs, in the order in which they see a query.
func dns() {
	dnsserver.Directives = []string{"bind", "health", "ready", "errors", "cache", "kubernetes", "forward"}
	coremain.Run()
}
