// Reads objects as a JSON list from stdin, and prints what kstatus (Flux, kpt) and Argo CD make of each.
// The argument is the file of a health check for Argo CD, in Lua.
package main

import (
	"encoding/json"
	"fmt"
	"os"

	lua "github.com/yuin/gopher-lua"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/cli-utils/pkg/kstatus/status"
)

func main() {
	if err := run(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(script string) error {
	code, err := os.ReadFile(script)
	if err != nil {
		return err
	}
	var objects []map[string]any
	if err := json.NewDecoder(os.Stdin).Decode(&objects); err != nil {
		return err
	}
	found := [][2]string{}
	for _, object := range objects {
		result, err := status.Compute(&unstructured.Unstructured{Object: whole(object).(map[string]any)})
		if err != nil {
			return err
		}
		health, err := healthOf(object, string(code))
		if err != nil {
			return err
		}
		found = append(found, [2]string{result.Status.String(), health})
	}
	return json.NewEncoder(os.Stdout).Encode(found)
}

// whole makes integers of JSON's numbers, as an API server's client does.
func whole(value any) any {
	switch each := value.(type) {
	case map[string]any:
		for key := range each {
			each[key] = whole(each[key])
		}
	case []any:
		for at := range each {
			each[at] = whole(each[at])
		}
	case float64:
		if each == float64(int64(each)) {
			return int64(each)
		}
	}
	return value
}

// healthOf runs a health check as Argo CD does: with the object as `obj`, and few libraries (util/lua/lua.go).
func healthOf(object map[string]any, code string) (string, error) {
	state := lua.NewState(lua.Options{SkipOpenLibs: true})
	defer state.Close()
	for name, open := range map[string]lua.LGFunction{
		lua.BaseLibName: lua.OpenBase, lua.TabLibName: lua.OpenTable, lua.StringLibName: lua.OpenString,
	} {
		if err := state.CallByParam(lua.P{Fn: state.NewFunction(open), Protect: true}, lua.LString(name)); err != nil {
			return "", err
		}
	}
	state.SetGlobal("obj", toLua(state, object))
	if err := state.DoString(code); err != nil {
		return "", err
	}
	answer, isTable := state.Get(-1).(*lua.LTable)
	if !isTable {
		return "", fmt.Errorf("the health check returns %s, no table", state.Get(-1).Type())
	}
	return answer.RawGetString("status").String(), nil
}

func toLua(state *lua.LState, value any) lua.LValue {
	switch each := value.(type) {
	case map[string]any:
		table := state.NewTable()
		for key, item := range each {
			table.RawSetString(key, toLua(state, item))
		}
		return table
	case []any:
		table := state.NewTable()
		for _, item := range each {
			table.Append(toLua(state, item))
		}
		return table
	case string:
		return lua.LString(each)
	case bool:
		return lua.LBool(each)
	case int64:
		return lua.LNumber(each)
	case float64:
		return lua.LNumber(each)
	}
	return lua.LNil
}
