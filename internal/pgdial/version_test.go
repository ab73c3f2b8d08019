package pgdial

import "testing"

func TestOldServersAreRejected(t *testing.T) {
	for version, want := range map[string]bool{
		"9.6.24": false, "14.23 (Debian 14.23-1)": false, "14rc1": false, "15.18": true, "15beta1": true, "19rc1": true, "": true, "?": true,
	} {
		if err := CheckVersion(version); (err == nil) != want {
			t.Errorf("%q: %v", version, err)
		}
	}
}
