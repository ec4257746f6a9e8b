// Charts of every type.
import { assert, feature, withSandbox } from '../kit.mjs'

const charts = {
  line: ["plt.plot([1, 2], [3, 4], label='a'); plt.xlabel('Time (s)')", [{ label: 'a', points: [[1, 3], [2, 4]] }]],
  scatter: ["plt.scatter([1, 2], [3, 4], label='s')", [{ label: 's', points: [[1, 3], [2, 4]] }]],
  bar: ["plt.bar(['a'], [3], label='g')", [{ label: 'a', group: 'g', value: 3 }]],
  pie: ["plt.pie([1, 3], labels=['a', 'b'])", [{ label: 'a', angle: 90, radius: 1 }, { label: 'b', angle: 270, radius: 1 }]],
  box_and_whisker: [
    "plt.boxplot([[1, 2, 3, 4, 50]], tick_labels=['p'])",
    [{ label: 'p', min: 1, first_quartile: 2, median: 3, third_quartile: 4, max: 4, outliers: [50] }],
  ],
  unknown: ['plt.imshow([[1, 2], [3, 4]])', []],
}

for (const [type, [code, elements]] of Object.entries(charts)) {
  feature('charts', `a ${type} chart`, { core: true }, () =>
    withSandbox(async (sandbox) => {
      const { results } = await sandbox.runCode(`import matplotlib.pyplot as plt\n${code}\nplt.title('T')\nplt.show()`)
      assert.equal(results.length, 1)
      const { chart, png } = results[0]
      assert.deepEqual([chart.type, chart.title, chart.elements], [type, 'T', elements])
      assert.equal(Buffer.from(png, 'base64').subarray(1, 4).toString(), 'PNG')
      if (type === 'line') assert.deepEqual([chart.x_unit, chart.x_scale], ['s', 'linear'])
    })
  )
}

feature('charts', 'a superchart', { core: true }, () =>
  withSandbox(async (sandbox) => {
    const code = "f, a = plt.subplots(1, 2); a[0].plot([1]); a[1].bar(['x'], [1]); f.suptitle('S')"
    const { results } = await sandbox.runCode(`import matplotlib.pyplot as plt\n${code}\nplt.show()`)
    const { chart } = results[0]
    assert.deepEqual([chart.type, chart.title], ['superchart', 'S'])
    assert.deepEqual(chart.elements.map((element) => element.type), ['line', 'bar'])
  })
)
